"""Compares Redis with PostgreSQL from time to time, for the metrics."""

from collections import Counter
from typing import get_args

import structlog

from holdfast.gate.comparison import Comparison, Kind
from holdfast.gate.redis_client import RedisUrl, UnavailableError
from holdfast.runtime import metrics
from holdfast.runtime.db import Database

log = structlog.get_logger()


class GateCheck:
    def __init__(self, url: str, database: Database) -> None:
        self._url = RedisUrl.parse(url)
        self._database = database

    async def run_once(self) -> int:
        comparison = Comparison(self._url, self._database)
        try:
            report = await comparison.run(repair=False)
        except UnavailableError as error:
            # The breaker reports this.
            log.debug("redis_unavailable", error=str(error))
            return 0
        finally:
            await comparison.close()
        found = Counter(difference.kind for difference in report.differences)
        for kind in get_args(Kind):
            metrics.GATE_DIFFERENCES.set(found[kind], kind)
        return 0
