"""Compares Redis with PostgreSQL from time to time, for the metrics."""

from collections import Counter
from collections.abc import Mapping
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
            # The breaker reports this. What Redis had before no longer counts.
            log.debug("redis_unavailable", error=str(error))
            _record({})
            return 0
        finally:
            await comparison.close()
        # Redis refuses nobody in an event that is asleep, and catches up when it wakes.
        asleep = set(report.asleep)
        _record(Counter(each.kind for each in report.differences if each.event not in asleep))
        return 0


def _record(found: Mapping[Kind, int]) -> None:
    for kind in get_args(Kind):
        metrics.GATE_DIFFERENCES.set(found.get(kind, 0), kind)
