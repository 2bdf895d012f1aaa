"""The whole of one API process: the API, and the pages that are its clients."""

import os

from starlette.routing import BaseRoute

from holdfast.http.app import App
from holdfast.http.operation import House
from holdfast.logs import configure_logs
from holdfast.settings import Settings
from holdfast.web.routes import page_routes
from holdfast.web.site import Site


def create_app() -> App:
    """What Granian's workers call. The settings come from the environment."""
    configure_logs()
    return App(Settings.from_environment(os.environ), pages=_pages)


def _pages(app: App, house: House) -> list[BaseRoute]:
    return [*page_routes(Site(house.settings, house.pool, app, tuple(house.providers)))]
