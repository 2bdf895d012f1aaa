"""Holdfast runs without its optional packages, and says what to install if a setting needs one."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from holdfast.runtime.extras import MissingExtraError, optional_import
from tests.support.command_line import with_free_port
from tests.support.harness import Org, post_hold, publish_event, running_server
from tests.support.http_assertions import expect_ok
from tests.support.resources import reviewed_event

# Python imports a module of this name at its start.
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        blocked = ("redis", "stripe", "obstore", "opentelemetry", "confluent_kafka", "nats", "pywebpush")
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture
def without_extras(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python that has none of the optional packages."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    return {"PYTHONPATH": str(tmp_path)}


def run_python(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )


def test_the_environment_without_extras_lacks_the_packages(without_extras: dict[str, str]) -> None:
    for package in ("redis", "stripe", "obstore", "opentelemetry.sdk", "pywebpush"):
        assert run_python({}, "-c", f"import {package}").returncode == 0
        missing = package.partition(".")[0]
        assert f"No module named '{missing}'" in run_python(without_extras, "-c", f"import {package}").stderr


def test_holdfast_works_without_packages_that_it_does_not_use(
    database: str, without_extras: dict[str, str], tmp_path: Path
) -> None:
    environment = {**without_extras, "HOLDFAST_DATA_DIR": str(tmp_path / "data")}
    picture = b"\xff\xd8\xff\xe0 a receipt \xff\xd9"
    with running_server(database, workers=1, worker=True, **environment) as server:
        with server.client(Org(database).headers()) as admin:
            booking = expect_ok(post_hold(admin, publish_event(admin, reviewed_event()), items=[{"seat": "A-1"}]), 201)[
                "id"
            ]
            expect_ok(_upload(admin, booking, picture))
            (receipt,) = expect_ok(admin.get(f"/v1/bookings/{booking}/receipts"))["items"]
            assert admin.get(receipt["file_url"]).content == picture


def _upload(client: httpx.Client, booking: str, file: bytes) -> httpx.Response:
    return client.post(f"/v1/bookings/{booking}/receipt", files={"file": ("receipt.jpg", file, "image/jpeg")})


@pytest.mark.parametrize(
    ("command", "name", "value", "extra"),
    [
        ("serve", "HOLDFAST_STRIPE_KEY", "sk_test_1", "stripe"),
        ("serve", "HOLDFAST_RECEIPTS_URL", "s3://receipts?region=eu-1", "s3"),
        ("serve", "HOLDFAST_REDIS_URL", "redis://127.0.0.1", "redis"),
        ("worker", "HOLDFAST_REDIS_URL", "redis://127.0.0.1", "redis"),
        ("worker", "HOLDFAST_STRIPE_KEY", "sk_test_1", "stripe"),
        ("worker", "HOLDFAST_TRACING", "true", "tracing"),
        ("worker", "HOLDFAST_KAFKA_URL", "kafka://127.0.0.1", "kafka"),
        ("worker", "HOLDFAST_NATS_URL", "nats://127.0.0.1", "nats"),
        ("worker", "HOLDFAST_WEB_PUSH", "true", "push"),
    ],
)
def test_a_setting_that_needs_a_missing_package_says_what_to_install(
    database: str, without_extras: dict[str, str], command: str, name: str, value: str, extra: str
) -> None:
    environment = {**without_extras, "HOLDFAST_DATABASE_URL": database, name: value}
    done = run_python(environment, "-m", "holdfast", *with_free_port(command))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Cannot use {name}: ")
    assert done.stderr.endswith(f"run: pip install '.[{extra}]'\n")


def test_no_optional_package_is_imported_before_it_is_needed() -> None:
    modules = "holdfast.runtime.asgi, holdfast.runtime.cli, holdfast.worker.runner"
    packages = ("stripe", "obstore", "confluent_kafka", "nats", "pywebpush")
    found = run_python({}, "-c", f"import sys, {modules}; print([m for m in {packages} if m in sys.modules])")
    assert (found.stdout, found.stderr) == ("[]\n", "")


def test_a_broken_package_raises_its_own_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="something_else"):
        with optional_import("stripe", extra="stripe"):
            raise ModuleNotFoundError("No module named 'something_else'", name="something_else")
    with pytest.raises(MissingExtraError, match=r"install '\.\[stripe\]'"):
        with optional_import("stripe", extra="stripe"):
            raise ModuleNotFoundError("No module named 'stripe.params'", name="stripe.params")
