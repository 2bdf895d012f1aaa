"""The command line reports what it did, and explains what went wrong."""

import os
import socket
from pathlib import Path

import pytest

from holdfast.runtime import cli_database, ids
from holdfast.runtime.cli import url_host
from holdfast.runtime.database_urls import check_database_url
from holdfast.runtime.settings import SettingError, Settings
from tests.support.command_line import call_holdfast, run_holdfast, run_installed_holdfast, with_free_port
from tests.support.harness import Server, query


def test_a_key_is_printed_once_and_stored_only_as_a_hash(database: str) -> None:
    run_installed_holdfast(database, "orgs", "create", "acme")
    created = run_installed_holdfast(database, "keys", "create", "--org", "acme", "--role", "door")
    assert created.stdout.startswith("hf_sk_")
    assert len(created.stdout.split()) == 1
    stored = query(database, "SELECT * FROM api_key")
    assert created.stdout.strip() not in str(stored)


def test_keys_can_be_listed_and_revoked(database: str) -> None:
    call_holdfast(database, "orgs", "create", "acme", "--name", "Acme Ltd")
    key = call_holdfast(database, "keys", "create", "--org", "acme", "--role", "sales").stdout.strip()
    assert "Acme Ltd" in call_holdfast(database, "orgs", "list").stdout
    listed = call_holdfast(database, "keys", "list", "--org", "acme").stdout
    prefix = listed.split("…")[0]
    assert key.startswith(prefix)
    assert "valid" in listed
    assert call_holdfast(database, "keys", "revoke", "--org", "acme", "--prefix", prefix).returncode == 0
    assert "revoked" in call_holdfast(database, "keys", "list", "--org", "acme").stdout
    assert call_holdfast(database, "keys", "revoke", "--org", "acme", "--prefix", prefix).returncode == 2


def test_a_door_key_can_be_bound_to_events_of_its_org(database: str) -> None:
    call_holdfast(database, "orgs", "create", "acme")
    call_holdfast(database, "orgs", "create", "other")
    first, second, foreign = (_insert_event(database, org) for org in ("acme", "acme", "other"))
    door = ("keys", "create", "--org", "acme", "--role", "door")
    created = call_holdfast(database, *door, "--event", first, "--event", second, "--event", first)
    assert created.stdout.startswith("hf_sk_")
    call_holdfast(database, *door)
    bound, unbound = call_holdfast(database, "keys", "list", "--org", "acme").stdout.splitlines()
    assert bound.endswith(f"\tdoor\tvalid\t{first} {second}")
    assert unbound.endswith("\tdoor\tvalid")
    for event in (foreign, "ev_" + "0" * 32, "tonight"):
        refused = call_holdfast(database, *door, "--event", event)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"The org acme has no event {event}" in refused.stderr
    assert len(query(database, "SELECT FROM api_key")) == 2


def _insert_event(database: str, org: str) -> str:
    (row,) = query(
        database,
        "INSERT INTO event (id, org_id, status, title, starts_at, currency, tax_bps, policy, details) "
        "SELECT gen_random_uuid(), id, 'active', 'Friday night', now(), 'EUR', 0, '{}', '{}' FROM org WHERE slug = $1 "
        "RETURNING id",
        org,
    )
    return ids.format_event_id(row["id"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["keys", "create", "--org", "nobody", "--role", "admin"], "There is no org nobody"),
        (["keys", "create", "--org", "acme", "--role", "customer"], "customer-tokens"),
        (["keys", "create", "--org", "acme", "--role", "boss"], "Choose one of admin, sales, review, door."),
        (["keys", "create", "--org", "acme", "--role", "sales", "--event", "ev_1"], "Only a door key"),
        (["top", "--once", "--url", "127.0.0.1:8101"], "--url 127.0.0.1:8101 needs http://"),
        (["orgs", "create", "acme"], "already"),
        (["orgs", "create", "Not A Slug"], "slug"),
    ],
    ids=[
        "an unknown org",
        "a key for a customer",
        "an unknown role",
        "a bound key for sales",
        "no http",
        "an org twice",
        "not a slug",
    ],
)
def test_mistakes_are_reported_without_a_traceback(database: str, arguments: list[str], message: str) -> None:
    call_holdfast(database, "orgs", "create", "acme")
    done = call_holdfast(database, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("host", "in_url"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("shop.example", "shop.example"),
        ("::1", "[::1]"),
        ("0.0.0.0", "localhost"),
        ("::", "localhost"),
    ],
)
def test_a_server_prints_a_host_that_browsers_can_open(host: str, in_url: str) -> None:
    assert url_host(host) == in_url


def test_a_setting_that_is_not_a_number_is_reported_by_name(database: str) -> None:
    done = call_holdfast(database, "audit", HOLDFAST_LANES="many")
    assert done.returncode == 2
    assert "HOLDFAST_LANES" in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("HOLDFAST_LOG_FORMAT", "xml", "Expected json or console."),
        ("HOLDFAST_METRICS", "yes", "Expected true or false."),
        ("HOLDFAST_LANES", "many", "Expected a whole number."),
        ("HOLDFAST_LANES", "0", "Expected a whole number >= 1."),
        ("HOLDFAST_IDLE_SECONDS", "long", "Expected a number."),
    ],
)
def test_a_setting_of_another_type_is_reported_with_what_it_may_be(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingError) as refused:
        Settings.from_environment({name: value})
    assert str(refused.value) == f"Cannot use {name}: {message}"


# Both commands call one function that checks the settings.
@pytest.mark.parametrize(
    ("command", "name", "value"),
    [
        ("serve", "HOLDFAST_SMTP_URL", "http://user:hunter2@mail.example"),
        ("serve", "HOLDFAST_RECEIPTS_URL", "ftp://user:hunter2@files.example"),
        ("serve", "HOLDFAST_SANDBOX_WEBHOOK_SECRET", "whsec_"),
        ("serve", "HOLDFAST_PUBLIC_URL", "tickets.example.com"),
        ("worker", "HOLDFAST_SANDBOX_WEBHOOK_SECRET", "whsec_a"),
    ],
)
def test_an_invalid_setting_is_reported_without_its_secrets(database: str, command: str, name: str, value: str) -> None:
    done = run_installed_holdfast(database, *with_free_port(command), **{name: value})
    assert done.returncode == 2
    assert name in done.stderr
    assert "hunter2" not in done.stderr


@pytest.fixture(params=["a file", "a folder in /proc", "of somebody else"])
def unusable_folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    match request.param:
        case "a file":
            (tmp_path / "data").touch()
        case "a folder in /proc":
            return Path("/proc/holdfast")
        case _:
            (tmp_path / "data" / "receipts").mkdir(parents=True)
            # The tests may run as root, who may write everywhere.
            monkeypatch.setattr(os, "access", lambda *_: False)
    return tmp_path / "data"


@pytest.mark.parametrize("command", ["serve", "bot"])
def test_a_folder_that_cannot_store_receipts_is_reported(database: str, command: str, unusable_folder: Path) -> None:
    folder = str(unusable_folder)
    done = call_holdfast(database, *with_free_port(command), HOLDFAST_DATA_DIR=folder, HOLDFAST_RECEIPTS_URL="")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Cannot store receipts in the folder {folder}/receipts. ")
    assert "HOLDFAST_RECEIPTS_URL" in line


def test_receipts_in_a_bucket_need_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATA_DIR", "/proc/holdfast")
    monkeypatch.setenv("HOLDFAST_RECEIPTS_URL", "s3://bucket")
    cli_database.require_receipts_folder()


def test_an_unreachable_database_is_reported() -> None:
    done = call_holdfast("postgresql://postgres@127.0.0.1:1/none", "audit")
    assert done.returncode == 2
    assert "Cannot reach the database" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["serve", "worker", "migrate", "audit"])
@pytest.mark.parametrize("setting", ["HOLDFAST_DATABASE_URL", "HOLDFAST_MIGRATION_DATABASE_URL"])
def test_a_password_that_is_not_encoded_is_reported_without_it(command: str, setting: str) -> None:
    environment = {setting: "postgresql://holdfast:Zk3/9xQ+pLm=@127.0.0.1:1/x"}
    done = call_holdfast("postgresql://postgres@127.0.0.1:1/x", *with_free_port(command), **environment)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{setting} is malformed. ")
    assert "/ as %2F" in line
    assert "Zk3" not in line
    assert "9xQ" not in line


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:Zk3?9xQ@h/x",
        "postgresql://u:Zk3#9xQ@h/x",
        "postgresql://u:123/9xQ@h/x",
        "postgresql://u:[9xQ@h/x",
        "postgresql://u:9xQ@h:Zk3/x",
        "postgresql://u:Zk3@9xQ@h/x",
        "postgresql://u@server:9xQ@h/x",
        "postgres://u:Zk3@9xQ@h:5432,[::1]:5433/x?sslmode=require",
        "mysql://u:9xQ@h/x",
    ],
)
def test_a_malformed_database_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(SettingError, match="URL is malformed") as refused:
        check_database_url("URL", url)
    assert "9xQ" not in str(refused.value)
    assert "Zk3" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("postgresql://h/my@db", "the name of the database"),
        ("postgresql://u@server:p@h/x", "in the user"),
        ("postgresql://u:p@h/x?sslmode=require&", "options such as sslmode=require"),
        ("postgresql://h/x?sslmode", "options such as sslmode=require"),
        ("postgresql://u:Zk3?9xQ@h/x", "? as %3F"),
    ],
)
def test_the_advice_names_the_part_of_a_database_url_that_is_wrong(url: str, advice: str) -> None:
    with pytest.raises(SettingError) as refused:
        check_database_url("URL", url)
    assert advice in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h/my%40db",
        "postgresql://u%40server:p@h/x",
        "postgresql://u:Zk3%2F9xQ%40@h/x",
        "postgres://u:p%40ss@h:5432,[::1]:5433/x?sslmode=require",
        "postgresql://u@/x?host=/run/postgresql&port=5432",
        "postgresql:///x?user=u&password=p%40ss",
        "postgresql://h",
    ],
)
def test_a_database_url_that_the_driver_takes_is_accepted(url: str) -> None:
    check_database_url("URL", url)


@pytest.mark.parametrize("url", ["postgresql:///x?port=9xQ", "postgresql://u:9xQ@a..b/x"])
def test_a_database_url_that_only_the_driver_refuses_is_reported_without_it(url: str) -> None:
    check_database_url("URL", url)
    done = call_holdfast(url, "migrate", "--check")
    assert done.returncode == 2
    assert done.stderr == "The driver cannot read the database URL. Check HOLDFAST_DATABASE_URL.\n"


def test_a_database_that_denies_access_is_reported_without_a_traceback(database: str) -> None:
    head, _, query = database.partition("?")
    done = run_installed_holdfast(f"{head.rpartition('/')[0]}/nowhere?{query}", "audit")
    assert done.returncode == 2
    assert 'database "nowhere" does not exist' in done.stderr
    assert "HOLDFAST_DATABASE_URL" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_setting_out_of_range_is_refused(database: str) -> None:
    done = call_holdfast(database, "audit", HOLDFAST_LANES="0")
    assert done.returncode == 2
    assert "HOLDFAST_LANES" in done.stderr


def test_a_port_in_use_is_reported_before_anything_starts(database: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run_installed_holdfast(database, "serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "is already in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_server_on_the_same_port_is_refused(database: str, server: Server) -> None:
    done = run_installed_holdfast(database, "serve", "--port", str(server.port))
    assert done.returncode == 2
    assert "is already in use" in done.stderr


def test_the_audit_of_a_folder_without_a_database_is_refused(tmp_path: Path) -> None:
    done = run_holdfast("audit", "--data", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"There is no database in the folder {tmp_path}.")
    assert list(tmp_path.iterdir()) == []
