"""A real nginx with the configuration that Holdfast ships, in front of servers of a test."""

import errno
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.certificates import write_certificate
from tests.support.harness import free_port, temporary_folder, wait_until
from tests.support.programs import require_program

SHIPPED = Path(__file__).parents[2] / "deploy" / "nginx"
CONFIGURATION = SHIPPED / "holdfast.conf"
MAIN = SHIPPED / "nginx.conf"
# What only a test needs: nginx stays in the foreground, and writes only to its folder.
LOCAL = """
daemon off;
{user}
"""
LOCAL_HTTP = """
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
"""


class Nginx:
    def __init__(self, folder: Path, port: int, plain_port: int) -> None:
        self.port = port
        self.plain_port = plain_port
        self.url = f"https://127.0.0.1:{port}"
        self.errors = folder / "error.log"
        self.acme = folder / "acme"
        self.certificate = (folder / "fullchain.pem").read_text()
        self.tls = ssl.create_default_context(cadata=self.certificate)

    def client(self, headers: dict[str, str] | None = None) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=self.tls)


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        return probe.connect_ex(("::1", 1)) != errno.EADDRNOTAVAIL


def _ipv6_changes(nginx: Nginx) -> dict[str, str]:
    """Without IPv6 on this machine, nginx could not listen there."""
    ports = {"listen [::]:443": nginx.port, "listen [::]:80": nginx.plain_port}
    if has_ipv6():
        return {shipped: f"listen [::1]:{port}" for shipped, port in ports.items()}
    return {shipped: f"# {shipped}" for shipped in ports}


def _replace_all(text: str, changes: Mapping[str, str]) -> str:
    for shipped, local in changes.items():
        assert shipped in text, f"deploy/nginx no longer has {shipped!r}"
        text = text.replace(shipped, local)
    return text


@contextmanager
def running_nginx(ports: Sequence[int]) -> Iterator[Nginx]:
    """nginx in front of servers on these two ports."""
    program = require_program("nginx", "nginx-light")
    with temporary_folder() as folder:
        write_certificate(folder, "127.0.0.1")
        nginx = Nginx(folder, free_port(), free_port())
        changes = {
            "server api1:8000 ": f"server 127.0.0.1:{ports[0]} ",
            "server api2:8000 ": f"server 127.0.0.1:{ports[1]} ",
            "listen 443 ssl": f"listen 127.0.0.1:{nginx.port} ssl",
            "listen 80 ": f"listen 127.0.0.1:{nginx.plain_port} ",
            **_ipv6_changes(nginx),
            "/etc/nginx/tls/": f"{folder}/",
            "/var/www/acme": f"{folder}/acme",
            "/var/log/nginx/error.log": str(nginx.errors),
        }
        (folder / "holdfast.conf").write_text(_replace_all(CONFIGURATION.read_text(), changes))
        # As root, nginx would run its processes as another user, who cannot enter the folder.
        user = "user root;" if folder.owner() == "root" else ""
        main_changes = {
            "worker_processes auto;": "worker_processes 1;" + LOCAL.format(user=user),
            "/var/log/nginx/error.log": str(nginx.errors),
            "/run/nginx.pid": f"{folder}/nginx.pid",
            "http {": "http {" + LOCAL_HTTP.format(folder=folder),
            "/etc/nginx/conf.d/*.conf": f"{folder}/holdfast.conf",
        }
        (folder / "nginx.conf").write_text(_replace_all(MAIN.read_text(), main_changes))
        process = subprocess.Popen(
            [program, "-e", str(nginx.errors), "-p", str(folder), "-c", str(folder / "nginx.conf")]
        )
        try:
            with httpx.Client(verify=nginx.tls, timeout=5) as client:
                wait_until(lambda: _responds(process, client, f"{nginx.url}/metrics"), 30)
            yield nginx
        finally:
            process.terminate()
            process.wait(30)


def _responds(process: "subprocess.Popen[bytes]", client: httpx.Client, url: str) -> bool:
    assert process.poll() is None, "nginx ended"
    try:
        return client.get(url).status_code == 404
    except httpx.TransportError:
        return False
