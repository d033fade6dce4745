"""nginx or haproxy with the configuration of deploy/proxies, before two nodes of this machine.

Owns the proxy's process. Differences from the shipped configuration: the addresses, and for nginx
the surrounding file, usually from a package.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pwd import getpwuid

from tests.harness.processes import free_port

SHIPPED = Path(__file__).parents[2] / "deploy" / "proxies"
NODES = ("127.0.0.1:8001", "127.0.0.1:8002")
"""The nodes' addresses in the shipped configurations."""
LISTENS = "127.0.0.1:8080"
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0

_NGINX_FRAME = """\
{user}daemon off;
worker_processes 2;
pid {folder}/nginx.pid;
error_log {folder}/log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/answers;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/tasuki.conf;
}}
"""


class ProxyError(RuntimeError):
    """A proxy is not installed, or does not start; the message names the reason and the fix."""


@dataclass(frozen=True)
class Kind:
    """A kind of proxy. package: name of the Debian package. file: the shipped configuration. write:
    function writing a configuration into a folder. It returns two lists of command arguments: to
    check it, and to run it."""

    program: str
    package: str
    file: str
    write: Callable[[Path, str], tuple[Sequence[str], Sequence[str]]]


def _write_nginx(folder: Path, text: str) -> tuple[Sequence[str], Sequence[str]]:
    (folder / "tasuki.conf").write_text(text)
    # Otherwise root's workers would run as `nobody`, without the right to write here.
    user = f"user {getpwuid(0).pw_name};\n" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(_NGINX_FRAME.format(folder=folder, user=user))
    run = ("-p", str(folder), "-e", str(folder / "log"), "-c", str(folder / "nginx.conf"))
    return (*run, "-t"), run


def _write_haproxy(folder: Path, text: str) -> tuple[Sequence[str], Sequence[str]]:
    (folder / "haproxy.cfg").write_text(text)
    run = ("-db", "-f", str(folder / "haproxy.cfg"))
    return (*run, "-c"), run


KINDS = {
    "nginx": Kind("nginx", "nginx-light", "nginx.conf", _write_nginx),
    "haproxy": Kind("haproxy", "haproxy", "haproxy.cfg", _write_haproxy),
}


@contextmanager
def running_proxy(name: str, nodes: Sequence[str], folder: Path) -> Iterator[str]:
    """Run a proxy; yield the HOST:PORT for clients. name: a key of KINDS. nodes: HOST:PORT of two
    nodes' HTTP. Raises ProxyError."""
    kind = KINDS[name]
    program = shutil.which(kind.program) or shutil.which(f"/usr/sbin/{kind.program}")
    if program is None:
        raise ProxyError(f"{kind.program} is not installed: apt-get install {kind.package}")
    address = f"127.0.0.1:{free_port()}"
    check, run = kind.write(folder, configured(kind, address, nodes))
    checked = subprocess.run([program, *check], capture_output=True, text=True, check=False)
    if checked.returncode:
        raise ProxyError(f"{name} refuses its configuration: {checked.stdout}{checked.stderr}")
    with (folder / "output").open("w") as output:
        process = subprocess.Popen([program, *run], stdout=output, stderr=output)
    try:
        _wait(process, address, folder / "output")
        yield address
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def configured(kind: Kind, address: str, nodes: Sequence[str]) -> str:
    """Return the shipped configuration with the given addresses. Raises ProxyError if it does not
    name each replaced address exactly once."""
    text = (SHIPPED / kind.file).read_text()
    for shipped, here in zip((LISTENS, *NODES), (address, *nodes), strict=True):
        if text.count(shipped) != 1:
            raise ProxyError(f"deploy/proxies/{kind.file} must name {shipped} once")
        text = text.replace(shipped, here)
    return text


def _wait(process: "subprocess.Popen[bytes]", address: str, output: Path) -> None:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ProxyError(f"the proxy has ended: {output.read_text()[-500:]}")
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            time.sleep(0.02)
            continue
        return
    raise ProxyError(f"the proxy does not listen at {address} after {_START_SECONDS:g} s")
