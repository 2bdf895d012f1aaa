"""Which push services messages may go to.

A browser chooses its push service, but anybody can send us an address and claim that it is one. So Holdfast connects
only to the services that the operator trusts. A stranger's server could answer slowly, which would hold up the messages
of other buyers, or stand inside our network.
"""

import re
from typing import Final

import httpx

from holdfast.notifications.webhook_addresses import check_url

_SERVICE: Final = re.compile(r"([a-z0-9-]+(?:\.[a-z0-9-]+)*)(?::([0-9]{1,5}))?", re.IGNORECASE)
HTTPS_PORT: Final = 443


class PushServicesError(ValueError):
    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} is not the name of a host. List host names with commas between them, such as "
            "fcm.googleapis.com,push.apple.com."
        )


class PushServices:
    """The hosts in `HOLDFAST_PUSH_SERVICES`. Each stands for its subdomains too. It stands for port 443 unless it names
    another one, because a port without a service would be as slow as a stranger's server."""

    def __init__(self, names: str) -> None:
        self._services = tuple(_parse(name.strip()) for name in names.split(","))

    def includes(self, endpoint: str) -> bool:
        if check_url(endpoint, allow_private=True) is not None:
            return False
        url = httpx.URL(endpoint)
        return url.scheme == "https" and any(
            (url.port or HTTPS_PORT) == port and (url.host == host or url.host.endswith(f".{host}"))
            for host, port in self._services
        )


def _parse(name: str) -> tuple[str, int]:
    found = _SERVICE.fullmatch(name)
    if found is None:
        raise PushServicesError(name)
    return found[1].lower(), int(found[2] or HTTPS_PORT)
