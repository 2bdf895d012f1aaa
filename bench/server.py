"""Holdfast's server with operations to compare: upper limits, baselines without lanes, and refusals from memory."""

import os
import sys

from starlette.types import ASGIApp

from bench.baselines import BASELINES
from bench.telemetry_switch import TelemetrySwitch
from holdfast.api.app import App
from holdfast.api.operations import OPERATIONS
from holdfast.runtime.asgi import add_tracing
from holdfast.runtime.logs import configure_logs
from holdfast.runtime.server import serve
from holdfast.runtime.settings import Settings
from holdfast.runtime.tracing import configure_tracing


def create_app() -> ASGIApp:
    settings = Settings.from_environment(os.environ)
    configure_logs(settings)
    configure_tracing(settings, "api")
    switch = TelemetrySwitch()
    switch.install()
    operations = (*OPERATIONS, *BASELINES, *switch.operations)
    return add_tracing(App(settings, operations), operations)


if __name__ == "__main__":
    serve("127.0.0.1", int(sys.argv[1]), int(sys.argv[2]), with_worker=False, app="bench.server:create_app")
