"""Every command, option, variable, port and path in the deployment files exists in the product."""

import configparser
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from holdfast.runtime import db, server
from holdfast.runtime.cli import app
from holdfast.runtime.settings import Settings
from tests.support.programs import require_program

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("holdfast:")]
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROGRAM = "/opt/holdfast/bin/holdfast"
# PgBouncer passes these on, so it need not drop them.
TRACKED_BY_PGBOUNCER = {"application_name", "TimeZone"}
# Operators create these.
OPERATORS_FILES = {"deploy/secrets/metrics_token"}
OPERATORS_FOLDERS = {"./backups"}


def _commands() -> dict[str, list[str]]:
    """The arguments of every `holdfast` in these files."""
    commands = {f"compose.yaml {name}": SERVICES[name]["command"] for name in OURS}
    for unit in UNITS:
        program, *arguments = shlex.split(_unit(unit)["Service"]["ExecStart"])
        assert program == PROGRAM
        commands[unit.name] = arguments
    dockerfile = re.search(r"^CMD (\[.*\])$", _dockerfile(), re.MULTILINE)
    assert dockerfile is not None
    commands["Dockerfile"] = yaml.safe_load(dockerfile.group(1))
    return commands


def _unit(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    return unit


def _dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text()


def _texts() -> dict[str, str]:
    paths = [ROOT / "Dockerfile", ROOT / "compose.yaml", ROOT / "docs" / "deployment.md", *DEPLOY.rglob("*")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths if path.is_file()}


@pytest.mark.parametrize("arguments", _commands().values(), ids=_commands().keys())
def test_every_command_is_one_that_holdfast_accepts(arguments: list[str]) -> None:
    group: Any = typer.main.get_command(app)
    name, *options = arguments
    command = group.commands[name]
    # Parsing raises an error for an option that does not exist, and for a value of the wrong kind.
    context = command.make_context(name, options)
    assert not context.args


def test_every_variable_is_a_setting() -> None:
    settings = {f"HOLDFAST_{name.upper()}" for name in Settings.__struct_fields__}
    for path, text in _texts().items():
        unknown = set(re.findall(r"HOLDFAST_[A-Z_]+[A-Z]", text)) - settings
        assert not unknown, f"{path} uses {unknown}"


def test_every_mounted_file_exists() -> None:
    mounts = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())]
    named = [mount for mount in mounts if not mount.startswith(".")]
    assert set(named) == set(COMPOSE["volumes"])
    files = [mount for mount in mounts if mount.startswith(".")]
    assert files
    assert set(files) >= OPERATORS_FOLDERS
    for file in set(files) - OPERATORS_FOLDERS:
        assert (ROOT / file).exists(), file
    for program in ("create-roles.sh", "holdfast-backup"):
        assert os.access(DEPLOY / "postgres" / program, os.X_OK), program
    secrets = {secret["file"].removeprefix("./") for secret in COMPOSE["secrets"].values()}
    assert secrets == OPERATORS_FILES
    rules = _prometheus()["rule_files"]
    for rule in rules:
        assert (DEPLOY / "prometheus" / rule).exists()


def _prometheus() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    return read


def _listens_on(service: str) -> set[str]:
    command = SERVICES[service]["command"]
    values = dict(itertools.pairwise(command))
    return {value.rpartition(":")[2] for option, value in values.items() if option in ("--port", "--metrics")}


def test_every_scrape_target_is_a_service_that_listens_on_that_port() -> None:
    jobs = _prometheus()["scrape_configs"]
    targets = [target for job in jobs for static in job["static_configs"] for target in static["targets"]]
    assert {target.split(":")[0] for target in targets} == set(OURS) - {"migrate"}
    for target in targets:
        service, port = target.split(":")
        assert port in _listens_on(service), target
    credentials = {job["authorization"]["credentials_file"] for job in jobs}
    assert credentials == {f"/run/secrets/{name}" for name in COMPOSE["secrets"]}
    assert SERVICES["prometheus"]["secrets"] == list(COMPOSE["secrets"])


def test_alerts_reach_alertmanager_and_alertmanager_accepts_its_configuration() -> None:
    (managers,) = _prometheus()["alerting"]["alertmanagers"]
    assert managers["static_configs"] == [{"targets": ["alertmanager:9093"]}]
    assert "alertmanager" in SERVICES
    receivers = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text())["receivers"]
    assert receivers[0]["email_configs"]
    program = require_program("amtool", "prometheus-alertmanager")
    subprocess.run(
        [program, "check-config", str(DEPLOY / "alertmanager" / "alertmanager.yml")],
        check=True,
        capture_output=True,
        timeout=60,
    )


def test_only_the_migration_knows_the_owner_of_the_tables() -> None:
    for name in OURS:
        shown = str({key: value for key, value in SERVICES[name].items() if key != "build"})
        assert ("OWNER_PASSWORD" in shown) == (name == "migrate"), name
        assert "//holdfast:${APPLICATION_PASSWORD:?}@" in SERVICES[name]["environment"]["HOLDFAST_DATABASE_URL"]


def test_every_container_of_ours_gets_the_operators_settings() -> None:
    for name in OURS:
        assert SERVICES[name]["env_file"] == "holdfast.env"
    lines = (DEPLOY / "compose" / "holdfast.env").read_text().splitlines()
    values = dict(line.removeprefix("#").split("=", 1) for line in lines if "=" in line)
    assert Settings.from_environment(values).stripe_key is None
    assert {"HOLDFAST_STRIPE_KEY", "HOLDFAST_SMTP_URL", "HOLDFAST_RECEIPTS_URL"} <= set(values)
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/.env", "/holdfast.env", "/backups/"} <= set(ignored)


def test_no_container_can_take_a_fixed_address() -> None:
    (network,) = COMPOSE["networks"]["holdfast"]["ipam"]["config"]
    others = IPv4Network(network["ip_range"])
    assert others.subnet_of(IPv4Network(network["subnet"]))
    for name in ("api1", "api2"):
        assert IPv4Address(SERVICES[name]["networks"]["holdfast"]["ipv4_address"]) not in others


def test_a_rolling_restart_waits_until_a_server_can_sell() -> None:
    for name in ("api1", "api2"):
        assert "http://127.0.0.1:8000/readyz" in SERVICES[name]["healthcheck"]["test"][-1]


def test_postgresql_is_healthy_only_once_its_roles_exist() -> None:
    """While the container runs its first scripts, PostgreSQL answers on its socket only."""
    assert "--host=127.0.0.1" in SERVICES["postgres"]["healthcheck"]["test"]


def test_prometheus_accepts_its_configuration() -> None:
    program = require_program("promtool", "prometheus")
    subprocess.run(
        [program, "check", "config", "--syntax-only", str(DEPLOY / "prometheus" / "prometheus.yml")],
        check=True,
        capture_output=True,
        timeout=60,
    )


def test_every_server_of_nginx_is_a_service_that_listens_on_that_port() -> None:
    text = (DEPLOY / "nginx" / "holdfast.conf").read_text()
    servers = re.findall(r"^\s+server (\w+):(\d+) ", text, re.MULTILINE)
    assert len(servers) == 2
    for service, port in servers:
        assert port in _listens_on(service)
        assert "ipv4_address" in SERVICES[service]["networks"]["holdfast"], "nginx looks it up only once"
        assert SERVICES[service]["environment"]["HOLDFAST_PROXIES"] == "1"


def test_grafana_finds_the_dashboards_and_prometheus() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    provider = yaml.safe_load((provisioning / "dashboards" / "holdfast.yaml").read_text())["providers"][0]
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"][0]
    assert re.fullmatch(r"http://(\w+):9090", source["url"]).group(1) in SERVICES  # type: ignore[union-attr]


def test_images_are_pinned_to_a_version() -> None:
    images = [service["image"] for name, service in SERVICES.items() if name not in OURS]
    images += re.findall(r"^FROM (\S+)", _dockerfile(), re.MULTILINE)
    assert len(images) >= 7
    for image in images:
        assert re.search(r":v?\d+\.\d+", image), image


def test_processes_get_the_time_that_they_need_to_stop() -> None:
    needed = 2 * server.DRAIN_SECONDS + server.KILL_SECONDS
    for name in set(OURS):
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > needed
    for unit in UNITS:
        assert int(_unit(unit)["Service"]["TimeoutStopSec"]) > needed


def test_the_container_runs_with_a_read_only_root_and_without_privileges() -> None:
    last_stage = _dockerfile().rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", last_stage, re.MULTILINE)
    for name in OURS:
        assert (SERVICES[name]["read_only"], SERVICES[name]["cap_drop"], SERVICES[name]["tmpfs"]) == (
            True,
            ["ALL"],
            ["/tmp"],
        )


def test_the_health_check_asks_the_port_on_which_the_image_listens() -> None:
    arguments = _commands()["Dockerfile"]
    port = arguments[arguments.index("--port") + 1]
    assert f"EXPOSE {port}\n" in _dockerfile()
    assert f"http://127.0.0.1:{port}/healthz" in _dockerfile()
    for name in ("api1", "api2"):
        assert _listens_on(name) == {port}


def test_the_image_copies_files_that_exist_and_installs_extras_that_exist() -> None:
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", _dockerfile(), re.MULTILINE)
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    for path in " ".join(copied).split():
        assert (ROOT / path).exists()
        assert f"!{path}" in sent
    extras = re.search(r"^ARG EXTRAS=([\w,]+)$", _dockerfile(), re.MULTILINE)
    assert extras is not None
    assert '".[${EXTRAS}]"' in _dockerfile()
    assert SERVICES["migrate"]["build"]["args"]["EXTRAS"] == f"${{EXTRAS:-{extras.group(1)}}}"
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.group(1).split(",")) <= set(declared)


def test_hadolint_has_no_complaint() -> None:
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("needs hadolint, which has no package for this machine")
    done = subprocess.run([program, str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_docker_compose_accepts_the_file(tmp_path: Path) -> None:
    program = require_program("docker-compose", "docker-compose")
    shutil.copy(ROOT / "compose.yaml", tmp_path)
    shutil.copy(DEPLOY / "compose" / "holdfast.env", tmp_path)
    names = re.findall(r"\$\{(\w+)", (ROOT / "compose.yaml").read_text())
    done = subprocess.run(
        [program, "--file", str(tmp_path / "compose.yaml"), "config", "--quiet"],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **dict.fromkeys(names, "https://example.com")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_every_unit(unit: Path, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("needs systemd-analyze")
    local = tmp_path / unit.name
    local.write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
    done = subprocess.run([program, "verify", str(local)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_unit_reads_the_shipped_settings() -> None:
    for unit in UNITS:
        assert _unit(unit)["Service"]["EnvironmentFile"] == "/etc/holdfast/holdfast.env"
    values = _source("holdfast.env") | _source("owner.env")
    settings = Settings.from_environment(values)
    assert settings.proxies == 1
    for url in (settings.database_url, settings.migration_database_url):
        assert url is not None
        assert url.endswith("?sslmode=verify-full&sslrootcert=/etc/holdfast/database-ca.pem")


def _source(file: str) -> dict[str, str]:
    return _source_text((DEPLOY / "systemd" / file).read_text())


def _source_text(text: str) -> dict[str, str]:
    """What a shell reads, which must be the same that systemd reads."""
    script = f"set -a\n{text}\nenv -0"
    done = subprocess.run(["sh", "-euc", script], env={}, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair.startswith("HOLDFAST_"))


def test_both_settings_files_suggest_the_same_documented_settings() -> None:
    """Payments, emails and receipts need them, wherever Holdfast runs."""
    compose, systemd = ((DEPLOY / folder / "holdfast.env").read_text() for folder in ("compose", "systemd"))
    suggested = re.compile(r"^#(?=[A-Z_]+=)", re.MULTILINE)
    names = re.findall(r"^#([A-Z_]+)=", compose, re.MULTILINE)
    assert names == re.findall(r"^#([A-Z_]+)=", systemd, re.MULTILINE)
    documented = (ROOT / "docs" / "settings.md").read_text()
    for name in names:
        assert f"`{name}`" in documented, name
    # Both files set these once their lines are no longer comments.
    for values in (
        _source_text(suggested.sub("", systemd)),
        dict(re.findall(r"^#?([A-Z_]+)=(.*)$", compose, re.MULTILINE)),
    ):
        settings = Settings.from_environment(values)
        assert settings.smtp_url == "smtp://user:password@mail.example.com:587"
        assert settings.receipts_url == "s3://bucket/prefix?region=name"


def test_a_service_starts_again_however_long_the_database_is_away() -> None:
    """By default, systemd gives up after five failed starts in ten seconds, and a failed start takes less than two."""
    for unit in UNITS:
        assert _unit(unit)["Unit"]["StartLimitIntervalSec"] == "0"
        assert _unit(unit)["Service"]["Restart"] == "always"


@pytest.mark.parametrize("command", ["doctor", "migrate"])
def test_commands_of_an_administrator_run_as_the_services_do(command: str, tmp_path: Path) -> None:
    """With a `systemd-run` that only says what it was asked to do."""
    (tmp_path / "systemd-run").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "systemd-run").chmod(0o755)
    done = subprocess.run(
        [DEPLOY / "systemd" / "holdfast-admin", command, "--an-option"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    arguments = done.stdout.splitlines()
    assert arguments[-3:] == [PROGRAM, command, "--an-option"]
    assert {"--wait", "--pipe"} <= set(arguments)
    given = dict(value.removeprefix("--property=").split("=", 1) for value in arguments if "--property=" in value)
    owner = "EnvironmentFile=-/etc/holdfast/owner.env"
    assert (f"--property={owner}" in arguments) == (command == "migrate")
    service = _unit(UNITS[0])["Service"]
    shared = ("DynamicUser", "User", "StateDirectory", "WorkingDirectory")
    assert {name: given[name] for name in shared} == {name: service[name] for name in shared}
    assert f"--property=EnvironmentFile={service['EnvironmentFile']}" in arguments


def test_pgbouncer_may_drop_exactly_what_holdfast_asks_for() -> None:
    text = (DEPLOY / "pgbouncer" / "pgbouncer.ini").read_text()
    allowed = re.search(r"^ignore_startup_parameters = (.*)$", text, re.MULTILINE)
    assert allowed is not None
    assert set(allowed.group(1).split(", ")) == {*db._LANE_SETTINGS, "search_path"} - TRACKED_BY_PGBOUNCER
