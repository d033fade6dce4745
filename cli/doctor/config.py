"""The settings of `tasuki doctor`."""

from dataclasses import dataclass

from tasuki.utils.options import option


@dataclass(frozen=True)
class DoctorConfig:
    model: str = option("", "folder of a checkpoint that is to be served", argument="MODEL")
    bind: str = option("127.0.0.1:50051", "HOST:PORT that a daemon is to serve by gRPC")
    http_bind: str = option("127.0.0.1:8000", "HOST:PORT that it is to serve by HTTP; empty: none")
    peers: str = option("", "daemons that should answer, HOST:PORT separated by commas")
    peers_ca: str = option(
        "", "PEM file of a CA: connect to peers by TLS and check them against it"
    )
    json: bool = option(False, "print a list of objects")
