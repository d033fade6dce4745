"""A real etcd on loopback, for tests."""

import shutil
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.certificates import Authority
from tests.harness.processes import free_port
from tests.harness.waiting import HANG_SECONDS


class EtcdProcess:
    def __init__(
        self, folder: Path, host: str = "127.0.0.1", authority: Authority | None = None
    ) -> None:
        """Set up the process, without starting it. authority: signs its TLS certificate; None:
        plain text."""
        program = shutil.which("etcd")
        if program is None:
            pytest.skip("etcd is not installed: install Debian's etcd-server")
        self._folder = folder
        self._program = program
        self.url = f"{'https' if authority else 'http'}://{host}:{free_port(host)}"
        self._tls: tuple[str, ...] = ()
        self._context: ssl.SSLContext | None = None
        if authority is not None:
            issued = authority.issue()
            self._tls = ("--cert-file", issued.certificate, "--key-file", issued.key)
            self._context = ssl.create_default_context(cafile=authority.path)
        self._peer = f"http://{host}:{free_port(host)}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self._folder / "etcd.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._program, "--data-dir", str(self._folder / "data")),
                    *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
                    *("--listen-peer-urls", self._peer),
                    *("--initial-advertise-peer-urls", self._peer),
                    *("--initial-cluster", f"default={self._peer}"),
                    *self._tls,
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            try:
                with urllib.request.urlopen(
                    f"{self.url}/health", timeout=1, context=self._context
                ) as reply:
                    if b"true" in reply.read():
                        return
            except OSError:
                pass
            assert time.monotonic() < deadline, (self._folder / "etcd.log").read_text()[-2000:]
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def running_etcd(
    folder: Path, host: str = "127.0.0.1", authority: Authority | None = None
) -> Iterator[EtcdProcess]:
    etcd = EtcdProcess(folder, host, authority)
    etcd.start()
    try:
        yield etcd
    finally:
        etcd.stop()
