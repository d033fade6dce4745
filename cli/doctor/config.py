"""The settings of `tasuki doctor`."""

from dataclasses import dataclass

from tasuki.utils.options import option


@dataclass(frozen=True)
class DoctorConfig:
    model: str = option("", "checkpoint folder to check", argument="MODEL")
    bind: str = option("127.0.0.1:50051", "HOST:PORT of a daemon's gRPC server")
    http_bind: str = option("127.0.0.1:8000", "HOST:PORT of its HTTP server; empty: none")
    peers: str = option("", "daemons to reach, HOST:PORT separated by commas")
    peers_ca: str = option(
        "", "PEM file of a CA: connect to peers by TLS and check them against it"
    )
    json: bool = option(False, "print a list of objects")
