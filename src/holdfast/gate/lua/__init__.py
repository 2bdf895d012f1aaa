"""The Lua scripts that run in Redis, by name."""

from importlib import resources
from typing import Final


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(f"{name}.lua").read_text()


ACQUIRE: Final = _read("acquire")
APPLY: Final = _read("apply")
BEGIN: Final = _read("begin")
COMPLETE: Final = _read("complete")
PROBE: Final = _read("probe")
SPEND: Final = _read("spend")
