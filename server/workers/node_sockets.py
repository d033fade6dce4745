"""The Unix sockets by which the processes of one node reach each other: a folder of this user's."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tasuki.server.config import ServerConfig


@dataclass(frozen=True)
class NodeSockets:
    """folder: this user's alone, as long as the node lives."""

    folder: str

    @property
    def engine(self) -> str:
        """Where front workers connect to the engine."""
        return str(Path(self.folder) / "engine")

    @property
    def grpc(self) -> str:
        """The registry's services."""
        return str(Path(self.folder) / "grpc")

    @property
    def http(self) -> str:
        """The registry's routes."""
        return str(Path(self.folder) / "http")


@contextmanager
def node_sockets(config: ServerConfig) -> Iterator[NodeSockets | None]:
    """For as long as the node lives; None where one process is its front."""
    if config.front_workers == 1:
        yield None
        return
    with TemporaryDirectory(prefix="tasuki-") as folder:
        yield NodeSockets(folder)
