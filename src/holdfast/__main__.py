"""The program `holdfast`."""

import gc
import io
import sys


def main() -> None:
    _unbuffer_standard_error()
    # Modules stay until the end. The garbage collector would look at them again and again while they are imported.
    gc.disable()
    from holdfast.runtime.cli import run

    gc.freeze()
    gc.enable()
    run()


def _unbuffer_standard_error() -> None:
    """If the disk is full or the terminal is closed, text on standard error is lost. In a buffer it would stay, and
    every later flush would fail. Starting an API process flushes."""
    if sys.stderr is not None:
        file = io.FileIO(sys.stderr.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(file, sys.stderr.encoding, sys.stderr.errors, write_through=True)


if __name__ == "__main__":
    main()
