"""The documented commands restore a database to a moment, with everything that was acknowledged before it."""

import asyncio
import gzip
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType

import httpx
import pytest

from holdfast.runtime import embedded
from tests.support.command_line import call_holdfast, run_audit
from tests.support.harness import (
    Org,
    example_event,
    post_hold,
    publish_event,
    query,
    running_server,
    temporary_folder,
    wait_until,
)
from tests.support.postgres_cluster import Cluster, DebianCluster, new_cluster
from tests.support.shell_examples import read_example

POOLS = [{"code": "places", "capacity": 1_000_000, "tariffs": [{"code": "full", "price": 100}]}]
SECONDS = 60
PROGRAM = Path(__file__).parents[2] / "deploy" / "postgres" / "holdfast-backup"
AS_POSTGRES = "runuser -u postgres -- "
WAL_FILE = re.compile(r"[0-9A-F]{24}\.gz")


class Seller:
    """Sells places until it is stopped, and remembers what was acknowledged."""

    def __init__(self, client: httpx.Client, event: str) -> None:
        self._client = client
        self._event = event
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sell)
        self.bookings: list[str] = []

    def __enter__(self) -> "Seller":
        self._thread.start()
        self.wait_for_more(5)
        return self

    def __exit__(self, *_: object) -> None:
        self.wait_for_more(5)
        self._stopping.set()
        self._thread.join()

    def wait_for_more(self, count: int) -> None:
        enough = len(self.bookings) + count
        wait_until(lambda: len(self.bookings) >= enough or not self._thread.is_alive(), SECONDS)

    def _sell(self) -> None:
        while not self._stopping.wait(0.01):
            answer = post_hold(self._client, self._event, user=secrets.token_hex(6), items=[{"pool": "places"}])
            assert answer.status_code == 201, answer.text
            self.bookings.append(answer.json()["id"])


class Operator:
    """Follows the guide, as the user of PostgreSQL, on the cluster of the test."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._program = cluster.folder / "holdfast-backup"
        shutil.copy(PROGRAM, self._program)
        self.backups = cluster.folder / "backups"
        self._variables = {"BACKUPS": str(self.backups), "PGDATA": str(cluster.data), "COPIES": "2"}

    def enable_archive(self) -> None:
        self.follow("# once, as root")

    def copy(self) -> None:
        _wait_for_next_second()
        self.follow("# the first copy")

    def restore(self, moment: str, **variables: str) -> None:
        self._cluster.stop(self._cluster.data)
        self.follow("# to the state at a moment", {"2027-03-05 18:00:00+00": moment}, variables)
        self._cluster.start()
        wait_until(lambda: not query(self._cluster.url, "SELECT pg_is_in_recovery()")[0][0], SECONDS)

    def follow(
        self,
        start: str,
        changes: Mapping[str, str] = MappingProxyType({}),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Run what the example runs as the user of PostgreSQL. The rest needs root or systemd."""
        lines = read_example("deployment.md", start).splitlines()
        ours = [line.partition(AS_POSTGRES)[2] for line in lines if AS_POSTGRES in line]
        assert ours
        for line in ours:
            for shown, used in changes.items():
                assert shown in line
                line = line.replace(shown, used)
            self.run(line.removeprefix("holdfast-backup "), **variables)

    def run(self, arguments: str, **variables: str) -> None:
        path = {"PATH": "/usr/bin:/bin"} if isinstance(self._cluster, DebianCluster) else {}
        self._cluster.run(f"{self._program} {arguments}", {**self._variables, **path, **variables})

    def copies(self) -> list[str]:
        return sorted(path.name for path in (self.backups / "copies").iterdir())

    def log(self) -> set[str]:
        return {path.name for path in (self.backups / "log").iterdir()}

    def segments(self) -> set[str]:
        """The numbers of the archived files of the log, whatever their timeline."""
        return {name[8:24] for name in self.log() if WAL_FILE.fullmatch(name)}

    def first_segment_of_oldest_copy(self) -> str:
        label = (self.backups / "copies" / self.copies()[0] / "backup_label").read_text()
        return label.partition("(file ")[2].partition(")")[0][8:24]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with temporary_folder() as folder:
        cluster = new_cluster(folder)
        cluster.create()
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop(cluster.data)


@pytest.fixture(scope="module")
def operator(cluster: Cluster) -> Operator:
    """Has switched the archive on."""
    operator = Operator(cluster)
    operator.enable_archive()
    cluster.stop(cluster.data)
    cluster.start()
    return operator


def test_a_copy_fails_until_postgresql_archives_its_log(cluster: Cluster) -> None:
    """This test comes first: the others need the archive."""
    operator = Operator(cluster)
    with pytest.raises(AssertionError, match=r"there is no folder .*/log.*run `holdfast-backup enable`"):
        operator.run("copy")
    assert not operator.backups.exists()
    operator.enable_archive()
    with pytest.raises(AssertionError, match=r"archive_mode is off.* restart PostgreSQL"):
        operator.run("copy")
    assert operator.copies() == []


def test_a_restore_has_what_was_sold_before_a_moment_and_nothing_after_it(cluster: Cluster, operator: Operator) -> None:
    """Twice, from the same copy: the first restore must not change what the second one finds."""
    asyncio.run(embedded.create_application_role(cluster.url))
    assert call_holdfast(cluster.url, "migrate").returncode == 0
    org = Org(cluster.url)
    with running_server(cluster.url, workers=1) as server, server.client(org.headers()) as client:
        event = publish_event(client, example_event(pools=POOLS))
        with Seller(client, event) as early:
            operator.copy()
        first_moment = _now(cluster)
        with Seller(client, event) as late:
            pass
        second_moment = _now(cluster)
    query(cluster.url, "DELETE FROM line")
    assert not run_audit(database_url=cluster.url)["ok"]

    operator.restore(first_moment)
    report = run_audit(database_url=cluster.url)
    assert (report["ok"], report["events"]) == (True, 1)
    with running_server(cluster.url, workers=1) as server, server.client(org.headers()) as client:
        assert _statuses(client, early.bookings) == {200}, "a booking from before the moment is missing"
        assert _statuses(client, late.bookings) == {404}
        between = post_hold(client, event, items=[{"pool": "places"}]).json()["id"]
    cluster.archive_everything()

    cluster.stop(cluster.data)
    with pytest.raises(AssertionError, match="began another history"):
        operator.run(f"restore '{second_moment}'")
    cluster.start()
    operator.restore(second_moment, TIMELINE="current")
    assert run_audit(database_url=cluster.url)["ok"]
    with running_server(cluster.url, workers=1) as server, server.client(org.headers()) as client:
        assert _statuses(client, early.bookings + late.bookings) == {200}
        assert _statuses(client, [between]) == {404}, "the second restore followed the history of the first one"
        assert post_hold(client, event, items=[{"pool": "places"}]).status_code == 201
    # Archiving goes on after each restore, and every restore begins a history of its own.
    cluster.archive_everything()
    assert {"00000002.history.gz", "00000003.history.gz"} <= operator.log()
    operator.copy()


def _now(cluster: Cluster) -> str:
    return str(query(cluster.url, "SELECT clock_timestamp()")[0][0])


def _statuses(client: httpx.Client, bookings: list[str]) -> set[int]:
    return {client.get(f"/v1/bookings/{booking}").status_code for booking in bookings}


def test_every_night_adds_a_copy_and_deletes_the_oldest_one_with_its_log(cluster: Cluster, operator: Operator) -> None:
    operator.copy()
    first, log = operator.copies(), operator.segments()
    for _ in range(2):
        operator.copy()
    assert len(operator.copies()) == 2
    assert not set(first) & set(operator.copies())
    assert log - operator.segments()
    assert min(operator.segments()) == operator.first_segment_of_oldest_copy()


def _wait_for_next_second() -> None:
    """Copies, and folders that a restore moves aside, are named by the second."""
    second = int(time.time())
    wait_until(lambda: int(time.time()) > second, SECONDS)


def test_nothing_is_copied_while_postgresql_fails_to_archive(cluster: Cluster, operator: Operator) -> None:
    cluster.archive_everything()
    copies = operator.copies()
    with setting(cluster, "archive_command", f"false {operator.backups}"):
        failures = _failures(cluster)
        cluster.switch_log()
        wait_until(lambda: _failures(cluster) > failures, SECONDS)
        with pytest.raises(AssertionError, match=r"could not archive 0.* copy again"):
            operator.run("copy")
    assert operator.copies() == copies
    cluster.archive_everything()


def test_a_copy_fails_while_its_log_does_not_reach_the_archive(cluster: Cluster, operator: Operator) -> None:
    operator.copy()
    copies = operator.copies()
    cluster.archive_everything()
    with setting(cluster, "archive_command", f"false {operator.backups}"):
        _wait_for_next_second()
        with pytest.raises(AssertionError, match=r"has not archived 0.*Copy again"):
            operator.run("copy", ARCHIVE_SECONDS="0")
        assert operator.copies() == [*copies, "new.part"], "older copies must stay until the new one can replace them"
    cluster.archive_everything()
    operator.copy()
    assert operator.copies()[:-1] == copies[1:], "the unfinished copy must go, and count as none"


@contextmanager
def setting(cluster: Cluster, name: str, value: str) -> Iterator[None]:
    before = query(cluster.url, f"SHOW {name}")[0][0]
    _set(cluster, name, value)
    try:
        yield
    finally:
        _set(cluster, name, before)


def _set(cluster: Cluster, name: str, value: str) -> None:
    query(cluster.url, f"ALTER SYSTEM SET {name} = $value${value}$value$")
    query(cluster.url, "SELECT pg_reload_conf()")
    wait_until(lambda: query(cluster.url, f"SHOW {name}")[0][0] == value, SECONDS)


def _failures(cluster: Cluster) -> int:
    return int(query(cluster.url, "SELECT failed_count FROM pg_stat_archiver")[0][0])


def test_a_file_is_archived_once_however_often_postgresql_asks(cluster: Cluster, operator: Operator) -> None:
    file = cluster.folder / "000000010000000000000099"
    file.write_bytes(b"log")
    operator.run(f"archive {file} {file.name}")
    operator.run(f"archive {file} {file.name}")
    file.write_bytes(b"the log of another server")
    with pytest.raises(AssertionError, match="differs"):
        operator.run(f"archive {file} {file.name}")
    assert gzip.decompress((operator.backups / "log" / f"{file.name}.gz").read_bytes()) == b"log"


def test_a_restore_refuses_a_running_server_and_a_moment_before_the_first_copy(
    cluster: Cluster, operator: Operator
) -> None:
    operator.copy()
    with pytest.raises(AssertionError, match="still runs"):
        operator.run("restore latest")
    with pytest.raises(AssertionError, match="is older than 2001-01-01"):
        operator.run("restore '2001-01-01 00:00:00+00'")
    assert query(cluster.url, "SELECT 1")


@pytest.mark.parametrize(
    "moment",
    [
        "",
        "12",
        "yesterday",
        "07/08/2026",
        "Europe/Berlin",
        "2001-08-07 12",
        "2001-08-07 12:00 Europe/Berlin",
        "2001-02-30",
    ],
)
def test_a_restore_refuses_what_is_no_moment_with_an_example(operator: Operator, moment: str) -> None:
    with pytest.raises(AssertionError, match=r"is no moment.*'2027-03-05 18:00:00\+02'"):
        operator.run(f"restore '{moment}'")


@pytest.mark.parametrize(
    ("moment", "read"),
    [
        ("2001-08-07", "2001-08-07 00:00:00.000000"),
        ("2001-08-07 12:30", "2001-08-07 12:30:00.000000"),
        ("2001-08-07 12:30:15.25+02", "2001-08-07 10:30:15.250000"),
        ("2001-08-07T12:30:15-03:30", "2001-08-07 16:00:15.000000"),
        ("2001-08-07T12:30:15Z", "2001-08-07 12:30:15.000000"),
    ],
)
def test_a_restore_says_how_it_read_the_moment_before_it_moves_anything(
    cluster: Cluster, operator: Operator, moment: str, read: str
) -> None:
    with pytest.raises(AssertionError, match=rf"(?s)You restore the state at {re.escape(read)}\+00\..*is older than"):
        operator.run(f"restore '{moment}'")
    assert query(cluster.url, "SELECT 1")


def test_latest_restores_a_shop_in_which_nothing_happened_until_the_moment(
    cluster: Cluster, operator: Operator
) -> None:
    """PostgreSQL wants a transaction after the moment, and does not start without one."""
    operator.copy()
    query(cluster.url, "CREATE TABLE sold AS SELECT 1 AS place")
    cluster.stop(cluster.data)
    later = datetime.now(UTC)
    with pytest.raises(AssertionError, match=r"is in the future.* restore `latest`"):
        operator.run(f"restore '{later + timedelta(hours=1)}'")
    operator.run(f"restore '{later.replace(tzinfo=None)}'")
    settings = (cluster.data / "postgresql.auto.conf").read_text()
    assert f"recovery_target_time = '{later:%Y-%m-%d %H:%M:%S.%f}+00'" in settings, "PostgreSQL may have another zone"
    advice = re.search(r"`(recovery ended .*)` means .* restore `(latest)`", (cluster.folder / "output").read_text())
    assert advice
    before = len((cluster.folder / "log").read_text())
    with pytest.raises(AssertionError):
        cluster.start()
    said = (cluster.folder / "log").read_text()[before:]
    assert "last completed transaction was at log time" in said
    assert advice[1] in said
    _wait_for_next_second()
    operator.run(f"restore {advice[2]}")
    cluster.start()
    wait_until(lambda: not query(cluster.url, "SELECT pg_is_in_recovery()")[0][0], SECONDS)
    assert query(cluster.url, "SELECT place FROM sold") == [(1,)]


# The last test, because PostgreSQL takes half a minute to archive again after a change of `archive_library`.
@pytest.mark.parametrize(
    ("name", "value"),
    [("archive_command", ""), ("archive_command", "cp %p /elsewhere/%f"), ("archive_library", "basic_archive")],
)
def test_nothing_is_copied_if_postgresql_archives_nothing_or_elsewhere(
    cluster: Cluster, operator: Operator, name: str, value: str
) -> None:
    """PostgreSQL counts no failure, and a copy every night would fill the disk."""
    copies = operator.copies()
    with setting(cluster, name, value):
        with pytest.raises(AssertionError, match=rf"to .*/backups\. .*`{value}`\. Run `holdfast-backup enable`"):
            operator.run("copy", ARCHIVE_SECONDS="0")
    assert operator.copies() == copies
