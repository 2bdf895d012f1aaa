"""The installation that the checks look at."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from holdfast.doctor.database_access import DatabaseAccess
from holdfast.runtime.embedded_url import find_embedded_url
from holdfast.runtime.settings import PREFIX, SettingError, Settings

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"})  # noqa: S104


class ProcessCounts(Struct, frozen=True):
    """How many processes of each kind the operator plans to run."""

    api: int
    workers: int
    bots: int


class Installation(Struct, frozen=True):
    """`invalid` has an error for each setting that cannot be used. `settings` has its default instead."""

    settings: Settings
    invalid: list[SettingError]
    environment: Mapping[str, str]
    processes: ProcessCounts
    database: DatabaseAccess

    @property
    def has_own_database(self) -> bool:
        """Not the embedded one, which a new user tries first."""
        return self.settings.database_url is not None

    @property
    def is_public(self) -> bool:
        """Whether buyers reach it from other machines."""
        return not is_loopback(self.settings.public_url)


def is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return host in LOOPBACK or host.startswith("127.") or host.endswith(".localhost")


def open_installation(environment: Mapping[str, str], processes: ProcessCounts) -> Installation:
    """Read every setting on its own, so that one that is invalid does not hide the others."""
    invalid: list[SettingError] = []
    valid: dict[str, str] = {}
    for name in Settings.__struct_fields__:
        variable = PREFIX + name.upper()
        if variable in environment:
            try:
                Settings.from_environment({variable: environment[variable]})
                valid[variable] = environment[variable]
            except SettingError as error:
                invalid.append(error)
    settings = Settings.from_environment(valid)
    url = settings.database_url or find_embedded_url(settings.data_dir)
    return Installation(settings, invalid, environment, processes, DatabaseAccess(url))
