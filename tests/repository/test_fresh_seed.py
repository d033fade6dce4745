"""Seeds of long random tests are new in each run, told at its end, and can be had again."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(folder: Path, **environment: str) -> str:
    (folder / "test_it.py").write_text(
        "from tests.conftest import fresh_seed\n"
        "def test_it(fresh_seed): assert 0 <= fresh_seed < 2**32\n"
    )
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", str(folder)],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (seed,) = re.findall(r"again: SEED=(\d+) .*test_it.py::test_it", done.stdout)
    return str(seed)


def test_a_seed_is_new_unless_it_is_given(tmp_path: Path) -> None:
    assert run(tmp_path, SEED="17") == "17"
    assert run(tmp_path) != run(tmp_path)
