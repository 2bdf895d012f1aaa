"""Puts one API process together: the API and the pages, which call it in the same process."""

import os

from starlette.routing import BaseRoute

from holdfast.api.app import App
from holdfast.api.call import Services
from holdfast.api.in_process import InProcessApi
from holdfast.api.operations import OPERATIONS
from holdfast.payments.sandbox import Sandbox
from holdfast.runtime.logs import configure_logs
from holdfast.runtime.settings import Settings
from holdfast.web.routes import page_routes
from holdfast.web.site import Site


def create_app() -> App:
    """Granian's workers call this. The settings come from the environment."""
    settings = Settings.from_environment(os.environ)
    configure_logs(settings)
    return App(settings, pages=create_pages)


def create_pages(api: InProcessApi, services: Services) -> list[BaseRoute]:
    site = Site(services.settings, services.database, api, tuple(services.providers))
    sandbox = services.providers.get("sandbox")
    return [*page_routes(site, OPERATIONS, sandbox if isinstance(sandbox, Sandbox) else None)]
