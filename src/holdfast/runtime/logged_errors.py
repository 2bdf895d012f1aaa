"""Errors as the log shows them. The texts of errors may quote a buyer, so only texts that never do are shown."""

import re
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

import asyncpg
from structlog.tracebacks import ExceptionDictTransformer

# What a text that is left out becomes.
HIDDEN: Final = "(not logged)"

# Their texts name types, settings, files and servers. Any other error may quote a value, as `KeyError` does.
_KNOWN: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    OSError,
    RuntimeError,
    AssertionError,
    TypeError,
    AttributeError,
    NameError,
    ImportError,
    BaseExceptionGroup,
)
# Those of PostgreSQL and asyncpg quote the row or the value that caused the error.
_QUOTED_VALUES: Final = re.compile(
    r"""\n(DETAIL|CONTEXT|HINT|QUERY|WHERE):.*      # the row
    |(?<=query\ argument\ \$)\d+:.*                 # the argument
    |:\ ".*                                         # invalid input syntax for type integer: "…"
    |(?<=^value\ )".*"(?=\ is\ out\ of\ range)""",
    re.DOTALL | re.VERBOSE,
)

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None]
_transform: Final = ExceptionDictTransformer(show_locals=False)


def error_text(error: BaseException) -> str:
    """What the log may say about an error besides its class."""
    is_ours = type(error).__module__.partition(".")[0] == __name__.partition(".")[0]
    if not (is_ours or isinstance(error, _KNOWN)):
        return HIDDEN
    return _QUOTED_VALUES.sub("", str(error))


def format_as_dicts(exc_info: ExceptionInfo) -> list[dict[str, Any]]:
    """For lines of JSON."""
    texts = {str(error): error_text(error) for error in _all_errors(exc_info[1], set())}
    stacks = _transform(exc_info)
    _clean(stacks, texts)
    return stacks


def format_as_text(exc_info: ExceptionInfo) -> str:
    """For people in a terminal."""
    shown = traceback.TracebackException(*exc_info)
    _clean_shown(shown, exc_info[1], set())
    return "".join(shown.format()).rstrip("\n")


def _all_errors(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    """The error, its causes, and the members of groups."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for each in (error.__cause__, error.__context__, *members):
        yield from _all_errors(each, seen)


def _clean(stacks: list[dict[str, Any]], texts: dict[str, str]) -> None:
    for stack in stacks:
        stack["exc_value"] = texts.get(stack["exc_value"], HIDDEN) if stack["exc_value"] else ""
        # Anybody can add a note to an error, with whatever explains it.
        stack.pop("exc_notes", None)
        stack.pop("syntax_error", None)
        for member in stack.get("exceptions", ()):
            _clean(member, texts)


def _clean_shown(shown: traceback.TracebackException | None, error: BaseException | None, seen: set[int]) -> None:
    if shown is None or error is None or id(shown) in seen:
        return
    seen.add(id(shown))
    # There is no public way to replace the text.
    shown._str = error_text(error)  # type: ignore[attr-defined]
    shown.__notes__ = None
    _clean_shown(shown.__cause__, error.__cause__, seen)
    _clean_shown(shown.__context__, error.__context__, seen)
    if shown.exceptions is not None and isinstance(error, BaseExceptionGroup):
        for shown_member, member in zip(shown.exceptions, error.exceptions, strict=True):
            _clean_shown(shown_member, member, seen)
