"""The whole of one API process: the API, and the pages that are its clients."""

import os

from starlette.routing import BaseRoute

from holdfast.api.app import App
from holdfast.api.call import Services
from holdfast.api.operations import OPERATIONS
from holdfast.payments.sandbox import Sandbox
from holdfast.runtime.logs import configure_logs
from holdfast.runtime.settings import Settings
from holdfast.web.routes import page_routes
from holdfast.web.site import Site


def create_app() -> App:
    """What Granian's workers call. The settings come from the environment."""
    configure_logs()
    return App(Settings.from_environment(os.environ), pages=_pages)


def _pages(app: App, services: Services) -> list[BaseRoute]:
    site = Site(services.settings, services.pool, app, tuple(services.providers))
    sandbox = services.providers.get("sandbox")
    return [*page_routes(site, OPERATIONS, sandbox if isinstance(sandbox, Sandbox) else None)]
