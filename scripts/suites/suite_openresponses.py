"""Open Responses' compliance tests, as they are, against a node that calls tools."""

import json
import os
import subprocess

from scripts.clients.install import FOLDER, install, program
from scripts.suites.outcome import Outcome
from scripts.suites.workplace import Workplace

NAME = "openresponses"
ORIGIN = "git clone https://github.com/openresponses/openresponses"
_PACKAGE = "open-responses"
_MODEL = "tool_caller"
_WEB_SOCKETS = "--experimental-websocket"
"""Node 20 has them so; later ones have them without."""
_SECONDS = 1200.0


def run(place: Workplace) -> list[Outcome]:
    """Run it. Raises MissingSuite."""
    install(_PACKAGE)
    copied = place.copy(place.suite(NAME, ORIGIN), "copy")
    (copied / "node_modules").symlink_to(FOLDER / _PACKAGE / "node_modules")
    with place.served(_MODEL) as url:
        command = [str(program(_PACKAGE, "tsx")), "bin/compliance-test.ts", "--json"]
        command += ["--base-url", f"{url}/v1", "--api-key", "none", "--model", _MODEL]
        if place.chosen:
            command += ["--filter", ",".join(place.chosen)]
        done = subprocess.run(
            command,
            cwd=copied,
            env={**os.environ, "NODE_OPTIONS": _WEB_SOCKETS},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    (place.folder / "log").write_text(done.stdout + done.stderr, encoding="utf-8")
    start = done.stdout.find("{")
    results = json.loads(done.stdout[start:])["results"] if start >= 0 else []
    return [_outcome(result) for result in results]


def _outcome(result: dict[str, object]) -> Outcome:
    verdict = {"passed": "passed", "skipped": "skipped"}.get(str(result["status"]), "failed")
    errors = result.get("errors") or []
    assert isinstance(errors, list)
    return Outcome(NAME, str(result["id"]), verdict, "\n".join(map(str, errors)))  # type: ignore[arg-type]
