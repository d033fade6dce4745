"""`tasuki doctor`: what would keep a daemon from working here, and the mend for each."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from tasuki.utils.flags import parse_config

from .config import DoctorConfig
from .finding import Verdict


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
