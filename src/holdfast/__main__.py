"""The program `holdfast`."""

import gc


def main() -> None:
    # Modules stay until the end. The garbage collector would look at them again and again while they are imported.
    gc.disable()
    from holdfast.runtime.cli import run

    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()
