"""`tasuki doctor`: what would keep a daemon from working here, and the mend for each."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tasuki.utils.config.flags import parse_config
from tasuki.utils.config.options import option

from .finding import Verdict


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


def main(argv: Sequence[str]) -> int:
    """0 where nothing failed, else 1."""
    config = parse_config("tasuki doctor", "Look for what would not work.", argv, DoctorConfig)
    from .checks import checks

    findings = [check() for check in checks(config)]
    if config.json:
        rows = [{**asdict(found), "verdict": found.verdict.value} for found in findings]
        print(json.dumps(rows, indent=1))
    else:
        print("\n".join(map(str, findings)))
    return int(any(found.verdict is Verdict.FAILURE for found in findings))
