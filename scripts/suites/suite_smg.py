"""The suite `e2e_test` of smg, including SGLang's server tests: a copy with a plain node as
backend."""

import shutil

from scripts.suites.outcome import Outcome, read_lines
from scripts.suites.workplace import STAND_INS, Workplace

NAME = "smg"
ORIGIN = "git clone https://github.com/lightseekorg/smg"
_FOLDERS = ("chat_completions", "completions", "messages", "responses")
_REPLACED = {"setup_backend.py": "fixtures", "run_eval.py": "infra"}
_IMAGES = "needs a model that sees images"
_TOOLS = "needs tools that smg's gateway runs itself"
LEFT_OUT = {
    "chat_completions/test_epd_multimodal.py": _IMAGES,
    "chat_completions/test_multimodal.py": _IMAGES,
    "messages/test_mcp_tool.py": _TOOLS,
    "messages/test_tool_search.py": _TOOLS,
    "responses/test_annotations.py": _TOOLS,
    "responses/test_builtin_tools.py": _TOOLS,
    "responses/test_image_generation.py": _TOOLS,
    "responses/test_storage_hooks.py": "needs a database behind smg's gateway",
}


def run(place: Workplace) -> list[Outcome]:
    """Run smg's suite in the folders of `place`, and return the outcomes. Raises MissingSuite."""
    source = place.suite(NAME, ORIGIN)
    root = place.folder / "copy"
    shutil.copytree(source / "e2e_test", root / "e2e_test")
    shutil.copy(source / "pytest.ini", root)
    for file, folder in _REPLACED.items():
        shutil.copy(STAND_INS / "smg" / file, root / "e2e_test" / folder)
    for file in LEFT_OUT:
        (root / "e2e_test" / file).unlink()
    targets = [f"e2e_test/{folder}" for folder in _FOLDERS]
    found = place.pytest(root, targets, root / "e2e_test")
    left_out = [
        Outcome(NAME, f"e2e_test/{file}", "skipped", reason) for file, reason in LEFT_OUT.items()
    ]
    return [*read_lines(NAME, found), *([] if place.chosen else left_out)]
