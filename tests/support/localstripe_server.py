"""localstripe on loopback: intents, refunds and signed notices, implemented independently of us."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.support.harness import free_port, wait_until

# Run as a module, it would listen on all addresses and keep its data in a file.
LOCALSTRIPE = """
import sys
from aiohttp import web
from localstripe import resources, server
resources.Store.dump_to_disk = lambda store: None
web.run_app(server.app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
"""
LOCAL_KEY = "sk_test_12345"
TAGS = {"payment": "py_1"}


class LocalStripe:
    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {LOCAL_KEY}"}, timeout=30)

    def post(self, path: str, **form: Any) -> Any:
        answer = self._client.post(path, json=form)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.content else None

    def create_intent(self, card: str = "4242424242424242", **more: Any) -> str:
        details = {"number": card, "exp_month": 12, "exp_year": 2035, "cvc": "123"}
        method = self.post("/v1/payment_methods", type="card", card=details)
        form = {"amount": 4200, "currency": "eur", "payment_method": method["id"], "metadata": TAGS, **more}
        id_: str = self.post("/v1/payment_intents", **form)["id"]
        return id_

    def list_refunds(self, intent: str) -> list[Any]:
        found: list[Any] = self._client.get("/v1/refunds", params={"payment_intent": intent}).json()["data"]
        return found

    def close(self) -> None:
        self._client.close()


@contextmanager
def running_localstripe() -> Iterator[LocalStripe]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", LOCALSTRIPE, str(port)])
    stripe = LocalStripe(f"http://127.0.0.1:{port}")
    try:
        wait_until(lambda: _is_up(stripe.url), 30)
        yield stripe
    finally:
        stripe.close()
        process.terminate()
        process.wait(30)


def _is_up(url: str) -> bool:
    try:
        return httpx.get(url, timeout=30, verify=False).status_code == 401
    except httpx.TransportError:
        return False
