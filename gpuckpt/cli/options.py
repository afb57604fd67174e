"""The option types the commands share. Every option has a twin in the environment.

Every value is read from text by a reader of cli/values.py, so that a wrong one always ends in
a one-line reason with a hint, and never in a library's own wording.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpuckpt.cli import values
from gpuckpt.cli.suggest import ignorable, images, pids, pids_and_images

if TYPE_CHECKING:
    from collections.abc import Callable

LOWEST_LEVEL, HIGHEST_LEVEL = -7, 19
_OUTPUT_PANEL = "Output"


def _option(
    name: str,
    *short: str,
    help: str,  # noqa: A002 - typer's own word
    metavar: str = "",  # none for a flag
    parser: Callable[[str], Any] | None = None,
    panel: str | None = None,
    offer: Callable[[str], Any] | None = None,
) -> Any:  # noqa: ANN401 - typer's own annotation
    return typer.Option(
        name,
        *short,
        help=help,
        metavar=metavar,
        parser=None if parser is None else _reader(parser),
        autocompletion=offer,
        envvar=values.variable(name),
        show_envvar=False,
        show_default=False,  # the help text says it in words: 30, not 30.0
        rich_help_panel=panel,
    )


def _reader(read: Callable[[str], Any]) -> Callable[[Any], Any]:
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
PlanTarget = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="The pid of a job's root, or the folder of an image (./123 for a folder 123).",
        parser=values.plan_target,
        autocompletion=pids_and_images,
    ),
]
JobPid = Annotated[
    int | None,
    typer.Argument(
        metavar="PID",
        help="A process of the job.",
        parser=_reader(values.pid),
        autocompletion=pids,
    ),
]
Folders = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FOLDER",
        help="Folders to look in.",
        parser=_reader(values.path("FOLDER")),
        autocompletion=images,
    ),
]
ImageFolder = Annotated[
    Path,
    typer.Argument(
        metavar="IMAGE",
        help="The folder of the image.",
        parser=values.path("IMAGE"),
        autocompletion=images,
    ),
]

# --- every command -----------------------------------------------------------------------------
AsJson = Annotated[bool, _option("--json", help="One JSON object on stdout.", panel=_OUTPUT_PANEL)]
Quiet = Annotated[
    bool,
    _option(
        "--quiet",
        "-q",
        help="Only what a script needs on stdout; only warnings and errors on stderr.",
        panel=_OUTPUT_PANEL,
    ),
]
Verbose = Annotated[
    bool,
    _option(
        "--verbose",
        "-v",
        help="Tell on stderr which programs are run, and how.",
        panel=_OUTPUT_PANEL,
    ),
]
Progress = Annotated[
    Literal["auto", "plain", "json", "none"] | None,
    _option(
        "--progress",
        metavar="FORM",
        help="Progress on stderr: auto, plain, json (one event a line) or none.",
        parser=values.choice("--progress", ("auto", "plain", "json", "none")),
        panel=_OUTPUT_PANEL,
    ),
]

Version = Annotated[bool, typer.Option("--version", metavar="", help="Show the version and exit.")]

# --- dump ----------------------------------------------------------------------------------------
Output = Annotated[
    Path | None,
    _option(
        "--output",
        "-o",
        metavar="IMAGE",
        help="Where to write the image. Default: command, pid and time, in the current folder.",
        parser=values.path("--output"),
    ),
]
LeaveRunning = Annotated[
    bool,
    _option("--leave-running", help="Let the job go on after the dump instead of ending it."),
]
Label = Annotated[
    list[str] | None,
    _option(
        "--label",
        metavar="NAME=VALUE",
        help="Write a label into the manifest. May be given several times.",
        parser=values.label,
    ),
]
Level = Annotated[
    int,
    _option(
        "--level",
        metavar="N",
        help="zstd level, -7 to 19; 0 and below are fastest. Default: 1.",
        parser=values.whole("--level", LOWEST_LEVEL, HIGHEST_LEVEL),
    ),
]
LockTimeout = Annotated[
    float,
    _option(
        "--lock-timeout",
        metavar="SECONDS",
        help="How long the driver may wait for running kernels. Default: 30.",
        parser=values.seconds("--lock-timeout", zero=False),
    ),
]
Tcp = Annotated[
    Literal["none", "established", "close"],
    _option(
        "--tcp",
        metavar="MODE",
        help="Connected TCP sockets: none (refuse them, the default), established or close.",
        parser=values.choice("--tcp", ("none", "established", "close")),
    ),
]
FileLocks = Annotated[
    bool, _option("--file-locks", help="Dump file locks too and take them again at the restore.")
]
GhostLimit = Annotated[
    int,
    _option(
        "--ghost-limit",
        metavar="SIZE",
        help="Largest deleted but open file to carry in the image. Default: 1G.",
        parser=values.size("--ghost-limit"),
    ),
]

Ignore = Annotated[
    list[str] | None,
    _option(
        "--ignore",
        metavar="ID",
        help="Go on although this finding stops a dump. May be given several times.",
        parser=values.ignorable,
        offer=ignorable,
    ),
]

# --- rehearse ------------------------------------------------------------------------------------
Stay = Annotated[
    float,
    _option(
        "--stay",
        metavar="SECONDS",
        help="How long the job stays without its GPU state. Default: 0.",
        parser=values.seconds("--stay", zero=True),
    ),
]
RealDump = Annotated[
    bool, _option("--dump", help="Make a real dump, check every byte of it, and remove it.")
]
Scratch = Annotated[
    Path | None,
    _option(
        "--output",
        "-o",
        metavar="IMAGE",
        help="With --dump: where to. Default: where a dump would go.",
        parser=values.path("--output"),
    ),
]
Keep = Annotated[bool, _option("--keep", help="With --dump: do not remove the image.")]

# --- repair and gc -------------------------------------------------------------------------------
DryRun = Annotated[bool, _option("--dry-run", help="Only say what would be done.")]

# --- restore -------------------------------------------------------------------------------------
Probe = Annotated[
    str | None,
    _option(
        "--probe",
        metavar="COMMAND",
        help="Shell command that must succeed once the job is back.",
        parser=values.command("--probe"),
    ),
]
ProbeTimeout = Annotated[
    float,
    _option(
        "--probe-timeout",
        metavar="SECONDS",
        help="How long to go on trying the probe. Default: 60.",
        parser=values.seconds("--probe-timeout", zero=False),
    ),
]
Wait = Annotated[
    bool,
    _option("--wait", help="Stay as the job's parent and end with its exit status."),
]
Settle = Annotated[
    float,
    _option(
        "--settle",
        metavar="SECONDS",
        help="How long the job must stay alive before it counts as restored. Default: 1.",
        parser=values.seconds("--settle", zero=True),
    ),
]
OnVerifyFail = Annotated[
    Literal["keep", "kill"],
    _option(
        "--on-verify-fail",
        metavar="WHAT",
        help="A job that fails the look afterwards: keep it (the default) or kill it.",
        parser=values.choice("--on-verify-fail", ("keep", "kill")),
    ),
]
ForceGate = Annotated[
    list[str] | None,
    _option(
        "--force-gate",
        metavar="ID",
        help="Restore although this gate is closed. May be given several times.",
        parser=values.gate,
    ),
]
PlanOnly = Annotated[
    bool,
    _option("--plan", help="Only tell what would stop the restore, as `gpuckpt plan IMAGE` does."),
]
