"""Values are read by our own readers, and by nothing else.

typer 0.29 would hand every one of them to pydantic, which takes longer to load than all the rest
of a command's start.
"""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

from gpuckpt.cli import values

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer.core import TyperArgument, TyperOption

    Parameter = TyperArgument | TyperOption


class Command(TyperCommand):
    """A command whose values are read by the readers they were declared with."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - as typer has it
        """Return all parameters, --help too."""
        return [_ours(parameter) for parameter in super().get_params(ctx)]


class Trailing(Command):
    """A command with an option --else, which takes all that follows it as one command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - as typer has it
        """Make one value of what follows; a single word is a line already."""
        before = args[: args.index("--")] if "--" in args else args
        if "--else" in before:
            at = args.index("--else")
            words = args[at + 1 :]
            words = words[1:] if words[:1] == ["--"] else words
            line = words[0] if len(words) == 1 else shlex.join(words)
            args = [*args[:at], f"--else={line}"]
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """What stands before the command, read in the same way."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 - as typer has it
        """Return all parameters, --help too."""
        return [_ours(parameter) for parameter in super().get_params(ctx)]


def _ours(parameter: Any) -> Any:  # noqa: ANN401 - typer keeps their class to itself
    parameter.process_value = partial(_value, parameter)
    return parameter


def _value(parameter: Parameter, context: Any, value: Any) -> Any:  # noqa: ANN401
    """Return what `value` means; defaults are no text, and pass."""
    if parameter.required and parameter.value_is_missing(value):
        return type(parameter).process_value(parameter, context, value)  # it says so
    several = parameter.multiple or parameter.nargs < 0
    if value is None:
        value = () if several else None
    elif several:
        value = [_read(parameter, one) for one in value]
    else:
        value = _read(parameter, value)
    callback = parameter.callback
    return value if callback is None else callback(context, parameter, value)


def _read(parameter: Parameter, value: Any) -> Any:  # noqa: ANN401
    return _reader(parameter)(value) if isinstance(value, str) else value


def _reader(parameter: Parameter) -> Callable[[str], Any]:
    """Return what makes a value of a text."""
    known = parameter.type_descriptor
    if known.parameter_info.parser is not None:
        return known.parameter_info.parser
    if known.annotation is bool:  # its twin in the environment is a text
        return values.switch(parameter.opts[0])
    return str
