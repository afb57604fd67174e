"""The command line as a typer app: which commands there are, and what was asked of them.

Parsing is kept apart from doing: `parse` returns what to run, so that a usage error is known
before anything was looked at, and a command is an ordinary function of its options.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from functools import cache, partial
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer
from typer._completion_classes import completion_init
from typer.main import get_command, get_group

from gpuckpt import __version__
from gpuckpt.cli import completion
from gpuckpt.cli.compat import compat
from gpuckpt.cli.copy import copy
from gpuckpt.cli.demo import demo
from gpuckpt.cli.doctor import doctor
from gpuckpt.cli.dump import dump
from gpuckpt.cli.evidence import evidence
from gpuckpt.cli.gc import gc
from gpuckpt.cli.jobs import jobs
from gpuckpt.cli.options import AsJson, Progress, Quiet, Verbose
from gpuckpt.cli.plan import plan
from gpuckpt.cli.reading import Command, Group, Trailing
from gpuckpt.cli.rehearse import rehearse
from gpuckpt.cli.repair import repair
from gpuckpt.cli.restore import restore
from gpuckpt.cli.run import run
from gpuckpt.cli.settings import Settings
from gpuckpt.cli.show import show
from gpuckpt.cli.status import status
from gpuckpt.cli.verify import verify
from gpuckpt.errors import UsageError
from gpuckpt.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typer.core import TyperCommand, TyperGroup

    from gpuckpt.cli.context import Application

    Handler = Callable[..., int]

Version = Annotated[bool, typer.Option("--version", metavar="", help="Show the version and exit.")]


COMMANDS: dict[str, Handler] = {
    "run": run,
    "plan": plan,
    "rehearse": rehearse,
    "dump": dump,
    "restore": restore,
    "verify": verify,
    "show": show,
    "copy": copy,
    "evidence": evidence,
    "compat": compat,
    "jobs": jobs,
    "status": status,
    "repair": repair,
    "gc": gc,
    "doctor": doctor,
    "demo": demo,
}
PROGRAM = "gpuckpt"
_HELP_WIDTH = 80


class Invocation(Value, frozen=True):
    """A command to run with the options it was given."""

    command: str
    settings: Settings
    handler: Handler

    def run(self, app: Application) -> int:
        """Run the command and return its exit status."""
        return self.handler(app)


def parse(argv: Sequence[str]) -> Invocation | int:
    """Return what to run, or an exit status if --help or --version said it all.

    Raises:
        UsageError: a value makes no sense.
        typer.TyperException: the command line does not fit the commands there are.

    """
    instruction = os.environ.get(completion.VARIABLE)
    if instruction:  # TAB was pressed, or `make completions` asks for a script
        script = completion.wanted(instruction)
        if script is not None:
            typer.echo(script, nl=False)
            return 0
        completion_init()
    found = build(plain=not sys.stdout.isatty()).main(
        list(argv), prog_name=PROGRAM, standalone_mode=False
    )
    if not isinstance(found, Invocation | int):
        raise UsageError("no command given", hint="`gpuckpt --help` lists the commands.")
    return found


def meant(argv: Sequence[str]) -> str:
    """Return the command in a command line that could not be understood, empty if none."""
    return next((word for word in argv if word in COMMANDS), "")


def build(*, plain: bool) -> TyperGroup:
    """Return the parser; `plain` help has a fixed width and no boxes."""
    names: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
    if plain:
        names |= {"terminal_width": _HELP_WIDTH, "max_content_width": _HELP_WIDTH}
    app = _typer(plain=plain, context_settings=names)
    app.callback(cls=Group, invoke_without_command=True, help=_prose(_root))(_root)
    group = get_group(app)
    group.commands = _Commands(partial(_command, plain=plain))  # type: ignore[assignment]
    return group


class _Commands(Mapping[str, "TyperCommand"]):
    """All commands, each made when it is asked for: a command line means only one of them."""

    def __init__(self, make: Callable[[str], TyperCommand]) -> None:
        """Make none yet."""
        self._make = cache(make)

    def __getitem__(self, name: str) -> TyperCommand:
        """Return a command with all its options."""
        if name not in COMMANDS:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(COMMANDS)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(COMMANDS)


def _command(name: str, *, plain: bool) -> TyperCommand:
    handler = COMMANDS[name]
    # what follows the job's program is the job's own, whatever it looks like
    own = {"allow_interspersed_args": False} if handler is run else None
    app = _typer(plain=plain)
    cls = Trailing if handler is restore else Command
    add = app.command(name, cls=cls, help=_prose(handler), context_settings=own)
    add(_parsed(name, handler))
    made: TyperCommand = get_command(app)  # type: ignore[assignment]
    return made


def _typer(*, plain: bool, **more: Any) -> typer.Typer:  # noqa: ANN401 - typer's own options
    return typer.Typer(
        name=PROGRAM,
        add_completion=False,
        rich_markup_mode=None if plain else "rich",
        pretty_exceptions_enable=False,
        **more,
    )


def _root(
    context: typer.Context,
    *,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    progress: Progress = None,
    version: Version = False,
) -> None:
    """Take a running GPU job off its host and bring it back.

    `gpuckpt doctor` tells whether this host can do it, `gpuckpt demo` shows it. Every option has
    a twin in the environment: --lock-timeout is GPUCKPT_LOCK_TIMEOUT.
    """
    if version:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit
    context.obj = _settings(json=json, quiet=quiet, verbose=verbose, progress=progress)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)


def _prose(handler: Callable[..., object]) -> str:
    """Return a docstring as paragraphs: the lines of the source are not those of the screen."""
    paragraphs = inspect.cleandoc(handler.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _parsed(name: str, handler: Handler) -> Callable[..., Invocation]:
    """Return the function typer sees: the command's options and those all commands share."""
    common = tuple(inspect.signature(_common, eval_str=True).parameters.values())
    own = tuple(inspect.signature(handler, eval_str=True).parameters.values())[1:]

    def command(context: typer.Context, **given: Any) -> Invocation:  # noqa: ANN401
        shared = _settings(**{parameter.name: given.pop(parameter.name) for parameter in common})
        return Invocation(name, shared.over(context.obj), partial(handler, **given))

    first = inspect.Parameter(
        "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    keyword = inspect.Parameter.KEYWORD_ONLY
    options = [
        parameter.replace(kind=keyword, annotation=_one_type(parameter.annotation))
        for parameter in (*own, *common)
    ]
    command.__signature__ = inspect.Signature([first, *options])  # type: ignore[attr-defined]
    command.__annotations__ = {}
    command.__name__ = name
    return command


def _one_type(annotation: Any) -> Any:  # noqa: ANN401 - any type there is
    """Return what typer may see: it takes no unions, and it is our readers that make the values."""
    inside = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return Annotated[_one_type(inside[0]), *inside[1:]]
    if get_origin(annotation) is list:
        return list[_one_type(inside[0])]  # type: ignore[misc] # made for typer
    if get_origin(annotation) is not UnionType:
        return annotation
    several = [one for one in inside if one is not NoneType]
    single = str if len(several) > 1 else _one_type(several[0])
    return single | None if NoneType in inside else single


def _common(
    *,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    progress: Progress = None,
) -> None:
    """Carry the signature of the options that every command shares."""


def _settings(*, json: bool, quiet: bool, verbose: bool, progress: str | None) -> Settings:
    return Settings(json=json, quiet=quiet, verbose=verbose, progress=progress or "auto")
