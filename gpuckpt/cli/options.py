"""The options that commands share; what only one command has stands beside it.

Every option has a twin in the environment.
Every value is read from text by a reader of cli/values.py, so that a wrong one always ends in
a one-line reason with a hint, and never in a library's own wording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpuckpt.cli import values
from gpuckpt.cli.suggest import ignorable, images, pids
from gpuckpt.location import Location

if TYPE_CHECKING:
    from collections.abc import Callable

LOWEST_LEVEL, HIGHEST_LEVEL = -7, 19
_OUTPUT_PANEL = "Output"


def option(
    name: str,
    *short: str,
    help: str,  # noqa: A002 - typer's own word
    metavar: str = "",  # none for a flag
    parser: Callable[[str], Any] | None = None,
    panel: str | None = None,
    offer: Callable[[str], Any] | None = None,
    twin: str = "",
) -> Any:  # noqa: ANN401 - typer's own annotation
    """Return what typer has to know of an option, its twin in the environment included.

    `twin` is of an option that means something else to another command.
    """
    return typer.Option(
        name,
        *short,
        help=help,
        metavar=metavar,
        parser=None if parser is None else reader(parser),
        autocompletion=offer,
        envvar=twin or values.variable(name),
        show_envvar=False,
        show_default=False,  # the help text says it in words: 30, not 30.0
        rich_help_panel=panel,
    )


def reader(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Return a reader that lets defaults pass: typer hands those to it too."""
    return lambda value: read(value) if isinstance(value, str) else value


Pid = Annotated[
    int,
    typer.Argument(
        metavar="PID",
        help="The root of the process tree to dump.",
        parser=values.pid,
        autocompletion=pids,
    ),
]
JobPid = Annotated[
    int | None,
    typer.Argument(
        metavar="PID",
        help="A process of the job.",
        parser=reader(values.pid),
        autocompletion=pids,
    ),
]
ImageFolder = Annotated[
    Location,
    typer.Argument(
        metavar="IMAGE",
        help="The folder of the image, or its URL: s3://BUCKET/IMAGE, sftp://HOST/IMAGE.",
        parser=values.location("IMAGE"),
        autocompletion=images,
    ),
]

Images = Annotated[
    list[Location],
    typer.Argument(
        metavar="IMAGE",
        help="The folder of the image, or its URL: s3://BUCKET/IMAGE, sftp://HOST/IMAGE. With "
        "--try several, or a folder that they are in.",
        parser=values.location("IMAGE"),
        autocompletion=images,
    ),
]

# --- every command -----------------------------------------------------------------------------
AsJson = Annotated[bool, option("--json", help="One JSON object on stdout.", panel=_OUTPUT_PANEL)]
Quiet = Annotated[
    bool,
    option(
        "--quiet",
        "-q",
        help="Only what a script needs on stdout; only warnings and errors on stderr.",
        panel=_OUTPUT_PANEL,
    ),
]
Verbose = Annotated[
    bool,
    option(
        "--verbose",
        "-v",
        help="Tell on stderr which programs are run, and how.",
        panel=_OUTPUT_PANEL,
    ),
]
Progress = Annotated[
    Literal["auto", "plain", "json", "none"] | None,
    option(
        "--progress",
        metavar="FORM",
        help="Progress on stderr: auto, plain, json (one event a line) or none.",
        parser=values.choice("--progress", ("auto", "plain", "json", "none")),
        panel=_OUTPUT_PANEL,
    ),
]

# --- dump ----------------------------------------------------------------------------------------
Output = Annotated[
    Location | None,
    option(
        "--output",
        "-o",
        metavar="IMAGE",
        help="Where to write the image: a folder, or a URL of a store (s3://, sftp://). Default: "
        "command, pid and time, in the current folder.",
        parser=values.location("--output", whole=False),
    ),
]
LeaveRunning = Annotated[
    bool,
    option("--leave-running", help="Let the job go on after the dump instead of ending it."),
]
Level = Annotated[
    int | None,
    option(
        "--level",
        metavar="LEVEL",
        help="zstd level, -7 to 19, or none; auto, the default, keeps neither the job waiting nor "
        "the storage.",
        parser=values.level("--level", LOWEST_LEVEL, HIGHEST_LEVEL),
    ),
]
LockTimeout = Annotated[
    float,
    option(
        "--lock-timeout",
        metavar="SECONDS",
        help="How long the driver may wait for running kernels. Default: 30.",
        parser=values.seconds("--lock-timeout", zero=False),
    ),
]
Thp = Annotated[
    bool,
    option(
        "--thp",
        help="Set transparent huge pages to always meanwhile: GPU memory is copied faster.",
    ),
]
Tcp = Annotated[
    Literal["none", "established", "close"],
    option(
        "--tcp",
        metavar="MODE",
        help="TCP connections: established or close; none, the default, keeps those inside the "
        "tree and refuses others.",
        parser=values.choice("--tcp", ("none", "established", "close")),
    ),
]
FileLocks = Annotated[
    bool, option("--file-locks", help="Dump file locks too and take them again at the restore.")
]
GhostLimit = Annotated[
    int,
    option(
        "--ghost-limit",
        metavar="SIZE",
        help="Largest deleted but open file to carry in the image. Default: 1G.",
        parser=values.size("--ghost-limit"),
    ),
]

Ignore = Annotated[
    list[str] | None,
    option(
        "--ignore",
        metavar="ID",
        help="Go on although this finding stops a dump. May be given several times.",
        parser=values.ignorable,
        offer=ignorable,
    ),
]

Quiesce = Annotated[
    bool,
    option(
        "--quiesce",
        help="First stop the job at a step and have it let go of what cannot be dumped; for jobs "
        "that use cooperate.py.",
    ),
]
QuiesceTimeout = Annotated[
    float,
    option(
        "--quiesce-timeout",
        metavar="SECONDS",
        help="How long the job may take to come to that step. Default: 60.",
        parser=values.seconds("--quiesce-timeout", zero=False),
    ),
]

# --- restore -------------------------------------------------------------------------------------
GpuMap = Annotated[
    str | None,
    option(
        "--gpu-map",
        metavar="PAIRS",
        help="Which GPU of the image goes to which of this host: OLD=NEW,... by number, UUID or "
        "its beginning. A plan places the rest.",
        parser=values.gpu_map,
    ),
]

ForceGate = Annotated[
    list[str] | None,
    option(
        "--force-gate",
        metavar="ID",
        help="Restore although this gate is closed. May be given several times.",
        parser=values.gate,
    ),
]

# --- afterwards ----------------------------------------------------------------------------------
DryRun = Annotated[bool, option("--dry-run", help="Only say what would be done.")]

Settle = Annotated[
    float,
    option(
        "--settle",
        metavar="SECONDS",
        help="How long the job must stay alive before it counts as restored. Default: 1.",
        parser=values.seconds("--settle", zero=True),
    ),
]
