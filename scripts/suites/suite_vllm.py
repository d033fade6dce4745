"""The suite `tests/entrypoints` of vLLM: a copy with a server fixture starting a real `tasuki
serve`."""

import shutil

from scripts.suites.outcome import Outcome, read_lines
from scripts.suites.workplace import STAND_INS, Workplace

NAME = "vllm"
_FOLDER = "vllm-0.33.0"
ORIGIN = "unpack the sdist of vLLM 0.33.0 from PyPI (pip download --no-binary :all: --no-deps)"
_TARGETS = (
    *("openai", "anthropic", "serve/tokenize", "serve/middleware"),
    "serve/instrumentator/test_basic.py",
)
LEFT_OUT = {
    "openai/test_openai_schema.py": "draws from /openapi.json for longer than a test may take; "
    "the suite schemathesis does so within bounds",
}


def run(place: Workplace) -> list[Outcome]:
    """Run vLLM's suite in the folders of `place`, and return the outcomes. Raises MissingSuite."""
    source = place.suite(_FOLDER, ORIGIN) / "tests" / "entrypoints"
    root = place.folder / "copy"
    shutil.copytree(STAND_INS / "vllm_tests", root / "tests")
    (root / "tests" / "__init__.py").touch()
    shutil.copytree(source, root / "tests" / "entrypoints")
    for file in LEFT_OUT:
        (root / "tests" / "entrypoints" / file).unlink()
    targets = [f"tests/entrypoints/{target}" for target in _TARGETS]
    found = place.pytest(root, targets, root)
    left_out = [
        Outcome(NAME, f"tests/entrypoints/{file}", "skipped", reason)
        for file, reason in LEFT_OUT.items()
    ]
    return [*read_lines(NAME, found), *([] if place.chosen else left_out)]
