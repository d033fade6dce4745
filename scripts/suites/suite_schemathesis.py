"""The suite schemathesis over a node's own /openapi.json: random requests, and checks of the
replies."""

import json
import subprocess
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from scripts.clients.install import install, program
from scripts.suites.outcome import Outcome
from scripts.suites.workplace import Workplace

NAME = "schemathesis"
_MODEL = "tool_caller_quick"
_SEED = "1"
_EXAMPLES = "20"
_ENDLESS = "^/debug/(stream|events)$"
"""A pattern for routes with endless replies, left out of the suite."""
_UNSAID = "positive_data_acceptance"
"""Name of a left-out check: it demands acceptance of every request valid by its schema. Schemas
cannot express rules over several fields."""
_REQUEST_SECONDS = "30"
_SECONDS = 3600.0
_ANSWER_SECONDS = 30.0


def run(place: Workplace) -> list[Outcome]:
    """Run the suite; skipped without a schema. It needs no folder of the suites, because
    schemathesis is a package."""
    install("suites")
    with place.served(_MODEL) as url:
        schema = f"{url}/openapi.json"
        if not _is_served(schema):
            return [Outcome(NAME, "/openapi.json", "skipped", "the node has none")]
        report = place.folder / "report.xml"
        command = [str(program("suites", "schemathesis")), "run", schema, "--seed", _SEED]
        command += ["--max-examples", _EXAMPLES, "--request-timeout", _REQUEST_SECONDS]
        command += ["--workers", "1", "--exclude-checks", _UNSAID]
        command += ["--report", "junit", "--report-junit-path", str(report), "--no-color"]
        command += ["--generation-database", "none", "--continue-on-failure"]
        command += ["--exclude-path-regex", _ENDLESS, "--phases", "coverage,fuzzing,stateful"]
        for pattern in place.chosen:
            command += ["--include-path-regex", pattern]
        with open(place.folder / "log", "w", encoding="utf-8") as log:
            subprocess.run(
                command,
                cwd=place.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=_SECONDS,
                check=False,
            )
    return read_report(report)


def read_report(file: Path) -> list[Outcome]:
    """Read outcomes from a JUnit file. An operation is a test, and each kind of its failures is a
    separate test.

    A kind is schemathesis' code, such as ST202; the message has its full text.
    """
    if not file.exists():
        return []
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(file).iter("testcase"):
        name = case.get("name", "")
        bad = [*case.findall("failure"), *case.findall("error")]
        if case.find("skipped") is not None:
            found[name] = Outcome(NAME, name, "skipped", "schemathesis left it out")
        elif not bad:
            found[name] = Outcome(NAME, name, "passed")
        for each in bad:
            for kind in (each.get("message") or "error").split(", "):
                test = f"{name} {kind}"
                found.setdefault(test, Outcome(NAME, test, "failed", each.text or ""))
    return list(found.values())


def _is_served(schema: str) -> bool:
    try:
        with urllib.request.urlopen(schema, timeout=_ANSWER_SECONDS) as answer:
            json.load(answer)
    except urllib.error.HTTPError:
        return False
    return True
