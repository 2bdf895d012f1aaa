"""Lets the gauges follow the parts of a process that serves the API."""

from collections.abc import Mapping

from holdfast.api.call import Services
from holdfast.api.live_socket import LiveFeed
from holdfast.runtime import db, metrics


def follow_process(services: Services, live: LiveFeed, pools: Mapping[str, db.Pool]) -> None:
    metrics.LANE_QUEUE_DEPTH.follow(lambda: services.engine.waiting)
    metrics.LIVE_SOCKETS.follow(lambda: len(live))
    redis = services.redis
    if redis is not None:
        metrics.BREAKER_OPEN.follow(lambda: not redis.breaker.is_closed)
    for name, pool in pools.items():
        metrics.follow_pool(name, pool)
