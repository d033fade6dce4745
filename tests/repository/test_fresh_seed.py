"""Tests of seeds of long random tests. A seed is new in each run, is printed at its end, and can be
set again."""

import re
from pathlib import Path

from tests.harness.programs import pytest_run


def run(folder: Path, **environment: str) -> str:
    (folder / "test_it.py").write_text(
        "from tests.conftest import fresh_seed\n"
        "def test_it(fresh_seed): assert 0 <= fresh_seed < 2**32\n"
    )
    done = pytest_run(folder, "tests.conftest", **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (seed,) = re.findall(r"again: SEED=(\d+) .*test_it.py::test_it", done.stdout)
    return str(seed)


def test_a_seed_is_new_unless_it_is_given(tmp_path: Path) -> None:
    assert run(tmp_path, SEED="17") == "17"
    assert run(tmp_path) != run(tmp_path)
