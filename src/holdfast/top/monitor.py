"""Takes samples at intervals, and compares each with the one before."""

import asyncio

from holdfast.runtime import db
from holdfast.top.database_sample import DatabaseSampler
from holdfast.top.figures import Figures, make_figures
from holdfast.top.metrics_sample import MetricsSample, MetricsSampler

NO_URL = "No metrics: pass --url with the address of a server to see latencies, refusals and Redis."


class Monitor:
    """Connects when it takes its first sample, and again after it has lost the connection."""

    def __init__(self, database_url: str, metrics: MetricsSampler | None) -> None:
        self._url = database_url
        self._metrics = metrics
        self._connection: db.Connection | None = None
        self._sampler: DatabaseSampler | None = None
        self._before: MetricsSample | None = None

    async def look(self) -> Figures:
        """The first look has no rates. Raises the error of the connection if the database does not answer."""
        try:
            sampler = self._sampler or await self._connect()
            sample, (now, missing) = await asyncio.gather(sampler.sample(), self._read_metrics())
        except BaseException:
            await self._disconnect()
            raise
        before, self._before = self._before, now
        return make_figures(sample, before, now, missing)

    async def close(self) -> None:
        await self._disconnect()
        if self._metrics is not None:
            await self._metrics.close()

    async def _connect(self) -> DatabaseSampler:
        self._connection = await db.connect_watcher(self._url)
        self._sampler = DatabaseSampler(db.Database(self._connection))
        return self._sampler

    async def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        self._connection = self._sampler = None

    async def _read_metrics(self) -> tuple[MetricsSample | None, list[str]]:
        return await self._metrics.sample() if self._metrics is not None else (None, [NO_URL])
