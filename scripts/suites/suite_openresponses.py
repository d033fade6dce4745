"""Open Responses' compliance tests, unchanged, against a thinking model and one without
thoughts."""

import json
import os
import subprocess
from pathlib import Path

from scripts.clients.install import FOLDER, install, program
from scripts.suites.outcome import Outcome, Verdict
from scripts.suites.workplace import Workplace

NAME = "openresponses"
ORIGIN = "git clone https://github.com/openresponses/openresponses"
_PACKAGE = "open-responses"
_MODELS = ("tool_caller", "tool_caller_quick")
"""The models of the suite, with thoughts and without. Each test is run with both, because a
thought's events hide later ones."""
_WEB_SOCKETS = "--experimental-websocket"
"""Flag needed by Node 20; later versions have web sockets without it."""
_SECONDS = 1200.0


def run(place: Workplace) -> list[Outcome]:
    """Run the suite in the folders of `place`, and return the outcomes. Raises MissingSuite."""
    install(_PACKAGE)
    copied = place.copy(place.suite(NAME, ORIGIN), "copy")
    (copied / "node_modules").symlink_to(FOLDER / _PACKAGE / "node_modules")
    return [each for model in _MODELS for each in read_log(model, _log(place, copied, model))]


def _log(place: Workplace, copied: Path, model: str) -> str:
    """Run the suite with one model, and return its output."""
    with place.served(model) as url:
        command = [str(program(_PACKAGE, "tsx")), "bin/compliance-test.ts", "--json"]
        command += ["--base-url", f"{url}/v1", "--api-key", "none", "--model", model]
        if place.chosen:
            command += ["--filter", ",".join(place.chosen)]
        # Into a file, because Node exits without writing the rest of a pipe.
        log = place.folder / f"log_{model}"
        with open(log, "w", encoding="utf-8") as written:
            subprocess.run(
                command,
                cwd=copied,
                env={**os.environ, "NODE_OPTIONS": _WEB_SOCKETS},
                stdout=written,
                stderr=subprocess.STDOUT,
                timeout=_SECONDS,
                check=False,
            )
    return log.read_text(encoding="utf-8")


def read_log(model: str, log: str) -> list[Outcome]:
    """Read outcomes from the suite's JSON output, after possible warnings of Node; empty if there
    is none.

    A test's name begins with the model's.
    """
    start = log.find("{\n")
    results = json.JSONDecoder().raw_decode(log, start)[0]["results"] if start >= 0 else []
    found = (_outcome(model, result) for result in results)
    return sorted(found, key=lambda outcome: outcome.test)


def _outcome(model: str, result: dict[str, object]) -> Outcome:
    known: dict[object, Verdict] = {"passed": "passed", "skipped": "skipped"}
    verdict = known.get(result["status"], "failed")
    errors = result.get("errors") or []
    assert isinstance(errors, list)
    return Outcome(NAME, f"{model}/{result['id']}", verdict, "\n".join(map(str, errors)))
