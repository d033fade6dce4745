"""A real etcd on loopback, for tests."""

import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.processes import free_port
from tests.harness.waiting import HANG_SECONDS


class EtcdProcess:
    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        program = shutil.which("etcd")
        if program is None:
            pytest.skip("etcd is not installed: install Debian's etcd-server")
        self._folder = folder
        self._program = program
        self.url = f"http://{host}:{free_port(host)}"
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
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=1) as reply:
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
def running_etcd(folder: Path, host: str = "127.0.0.1") -> Iterator[EtcdProcess]:
    etcd = EtcdProcess(folder, host)
    etcd.start()
    try:
        yield etcd
    finally:
        etcd.stop()
