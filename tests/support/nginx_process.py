"""A real nginx with the configuration that Holdfast ships, in front of servers of a test."""

import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.certificates import write_certificate
from tests.support.harness import free_port, temporary_folder, wait_until
from tests.support.programs import require_program

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx" / "holdfast.conf"
MAIN = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
worker_processes 1;
{user}
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/holdfast.conf;
}}
"""


class Nginx:
    def __init__(self, folder: Path, port: int, plain_port: int) -> None:
        self.port = port
        self.plain_port = plain_port
        self.url = f"https://127.0.0.1:{port}"
        self.errors = folder / "error.log"
        self.certificate = (folder / "fullchain.pem").read_text()
        self.tls = ssl.create_default_context(cadata=self.certificate)

    def client(self, headers: dict[str, str] | None = None) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, verify=self.tls)


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
            "listen 80;": f"listen 127.0.0.1:{nginx.plain_port};",
            "/etc/nginx/tls/": f"{folder}/",
        }
        configuration = CONFIGURATION.read_text()
        for shipped, local in changes.items():
            assert shipped in configuration, f"nginx/holdfast.conf no longer has {shipped!r}"
            configuration = configuration.replace(shipped, local)
        (folder / "holdfast.conf").write_text(configuration)
        # As root, nginx would run its processes as another user, who cannot enter the folder.
        user = "user root;" if folder.owner() == "root" else ""
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user=user))
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
