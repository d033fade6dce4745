"""Tests of skips: CI cannot pass by skipping, since its run fails on a skip missing from the
list."""

from pathlib import Path

import pytest

from tests.allowed_skips import ALLOWED, AllowedSkip
from tests.harness.covering import slow_behind
from tests.harness.programs import ROOT, pytest_run

PLUGIN = """
import pytest
from tests.allowed_skips import AllowedSkip, Machine
from tests.listed_skips import ListedSkips
HERE, ELSEWHERE = Machine("here", lambda: True), Machine("elsewhere", lambda: False)

def pytest_configure(config):
    config.pluginmanager.register(ListedSkips((
        AllowedSkip("*test_listed*", "no tool*", HERE, "a tool that is dear"),
        AllowedSkip("*test_gone*", "*", HERE, "what was mended"),
        AllowedSkip("*test_elsewhere*", "*", ELSEWHERE, "another machine"),
    )))
"""


NOT = "NOT LISTED"


def run(folder: Path, *more: str, **files: str) -> tuple[int, str]:
    """Return the exit status and output of a separate run over these test files. more: arguments of
    the run."""
    (folder / "listing.py").write_text(PLUGIN)
    for name, tests in files.items():
        (folder / f"test_{name}.py").write_text("import pytest\n" + tests)
    done = pytest_run(folder, "listing", *more)
    return done.returncode, done.stdout + done.stderr


LISTED = "def test_listed(): pytest.skip('no tool here')\n"
PASSES = "def test_passes(): pass\n"


# The first is the way of make; the second is a manual run.
WAYS = {"side by side": (("-n", "2", "--dist", "loadfile"),), "alone": ((),)}
ways = pytest.mark.parametrize("way", slow_behind(1, WAYS))


@ways
def test_a_run_of_listed_skips_is_green_and_says_which(
    tmp_path: Path, way: tuple[str, ...]
) -> None:
    code, told = run(tmp_path, *way, it=PASSES + LISTED)
    assert code == 0, told
    assert "allowed: 1 of *test_listed*: a tool that is dear" in told
    assert "stale: nothing of *test_gone* skips with here" in told
    assert "elsewhere" not in told and NOT not in told


SKIPS = {
    "another_test": "def test_other(): pytest.skip('no tool here')\n",
    "another_reason": "def test_listed(): pytest.skip('another reason')\n",
    "another_machine": "def test_elsewhere(): pytest.skip('no tool here')\n",
    "marked": "@pytest.mark.skip(reason='marked')\ndef test_other(): pass\n",
    "expected": "@pytest.mark.xfail(reason='known')\ndef test_other(): assert False\n",
    "whole_file": "pytest.skip('no tool here', allow_module_level=True)\n",
    "absent_module": "pytest.importorskip('no_such_module')\n",
    "fixture": (
        "@pytest.fixture\ndef tool(): pytest.skip('no tool')\ndef test_other(tool): pass\n"
    ),
}


@ways
def test_any_other_skip_fails_the_run_however_it_comes_about(
    tmp_path: Path, way: tuple[str, ...]
) -> None:
    code, told = run(tmp_path, *way, **SKIPS, passes=PASSES, listed=LISTED)
    assert code == 1, told
    for name in SKIPS:
        assert [line for line in told.splitlines() if NOT in line and f"test_{name}.py" in line]
    assert told.count(NOT) == len(SKIPS)
    assert "allowed: 1 of *test_listed*" in told


@ways
def test_a_file_that_skips_alone_fails_the_run(tmp_path: Path, way: tuple[str, ...]) -> None:
    code, told = run(tmp_path, *way, whole=SKIPS["whole_file"])
    assert code == 1 and told.count(NOT) == 1, told


def test_a_failure_stays_one(tmp_path: Path) -> None:
    code, told = run(tmp_path, it=LISTED + "def test_fails(): assert False\n")
    assert code == 1 and "1 failed" in told


def test_every_entry_is_of_files_that_exist() -> None:
    for entry in ALLOWED:
        folder, _, name = entry.tests.rpartition("/")
        pattern = name.removesuffix("*") if ".py" in name else name
        assert [*(ROOT / folder).glob(pattern)], entry.tests
        assert entry.why and entry.reason


def test_the_list_lets_no_tool_that_ci_installs_be_missing() -> None:
    for reason in ("spin or a C compiler is not installed", "etcd is not installed", "NIXL is not"):
        for entry in ALLOWED:
            assert not entry.matches("tests/transfer/test_protocol_model.py::test_x", reason)
            assert isinstance(entry, AllowedSkip)
