"""The log of everything that the engine of one process decides."""

from holdfast.engine.attempt_log import attempt_log
from holdfast.engine.batch import CommitListener
from holdfast.engine.transition_log import log_transitions
from holdfast.runtime.db import Database
from holdfast.runtime.pseudonyms import PseudonymKey
from holdfast.runtime.settings import Settings


class EngineLogs:
    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._key = PseudonymKey(database)

    @property
    def on_commit(self) -> CommitListener | None:
        return log_transitions if self._settings.log_transitions else None

    async def start(self) -> None:
        await self._key.start()
        attempt_log.start(self._settings.log_attempts)

    async def close(self) -> None:
        attempt_log.stop()
        await self._key.close()
