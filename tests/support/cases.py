"""Many cases in one test: cheaper than a parameter each, and a failure still names its case."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*names: object) -> Iterator[None]:
    """Name the case in the report of whatever fails inside it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"Case: {', '.join(str(name) for name in names)}")
        raise
