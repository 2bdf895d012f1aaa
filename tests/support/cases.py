"""Many cases in one test. This is cheaper than a parameter for each, and a failure still names its case."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*names: object) -> Iterator[None]:
    """Add the name of the case to the report of a failure inside it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"Case: {', '.join(str(name) for name in names)}")
        raise
