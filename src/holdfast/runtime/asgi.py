"""Puts one API process together: the API and the pages, which call it in the same process."""

import os
from collections.abc import Sequence

from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from holdfast.api.app import App
from holdfast.api.call import Operation, Services
from holdfast.api.in_process import InProcessApi
from holdfast.api.operations import OPERATIONS
from holdfast.payments.sandbox import Sandbox
from holdfast.runtime import tracing
from holdfast.runtime.logs import configure_logs
from holdfast.runtime.settings import Settings
from holdfast.runtime.tracing import configure_tracing
from holdfast.web.routes import page_routes
from holdfast.web.site import Site


def create_app() -> ASGIApp:
    """Granian's workers call this. The settings come from the environment."""
    settings = Settings.from_environment(os.environ)
    configure_logs(settings)
    configure_tracing(settings, "api")
    return add_tracing(App(settings, pages=create_pages), OPERATIONS)


def add_tracing(app: App, operations: Sequence[Operation]) -> ASGIApp:
    """The app, with a span for each request if tracing is on."""
    if tracing.active is None:
        return app
    # Its package is optional.
    from holdfast.api.traced_app import TracedApp

    return TracedApp(app, operations, tracing.active)


def create_pages(api: InProcessApi, services: Services) -> list[BaseRoute]:
    site = Site(services.settings, services.database, api, tuple(services.providers))
    sandbox = services.providers.get("sandbox")
    return [*page_routes(site, OPERATIONS, sandbox if isinstance(sandbox, Sandbox) else None)]
