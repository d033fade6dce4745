"""`tasuki doctor`: each obstacle to running a daemon here, and its fix."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from tasuki.utils.flags import parse_config

from .config import DoctorConfig


def main(argv: Sequence[str]) -> int:
    """Run `tasuki doctor`. Returns 0 if no check failed, else 1."""
    config = parse_config("tasuki doctor", "Look for what would not work.", argv, DoctorConfig)
    from .checks import Verdict, findings

    found = list(findings(config))
    if config.json:
        rows = [{**asdict(each), "verdict": each.verdict.value} for each in found]
        print(json.dumps(rows, indent=1))
    else:
        print("\n".join(map(str, found)))
    return int(any(each.verdict is Verdict.FAILURE for each in found))
