"""What the documents name exists."""

import re
from pathlib import Path

import pytest

from tests.harness.interaction import read

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"`([a-z_]+(?:/[a-z_0-9]+)+\.(?:py|h|cpp|proto|pml|md))`")
TEST = re.compile(r"`((?:gpu/)?test_[a-z_]+\.py)::(test_[a-z_0-9]+)`")
# The change log names files as they were called at the time.
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")} - {ROOT / "CHANGELOG.md"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [name for name in CODE.findall(text) if not (ROOT / name).exists()]
    assert not missing


def test_every_fault_has_its_test() -> None:
    rows = TEST.findall((ROOT / "docs" / "faults.md").read_text(encoding="utf-8"))
    assert len(rows) > 25
    for file, name in rows:
        (path,) = ROOT.glob(f"tests/*/{Path(file).name}")
        script = path.parent / "scripts" / f"{path.stem.removeprefix('test_')}.txt"
        titles = [test.name for test in read(script)] if script.exists() else []
        assert f"def {name}(" in path.read_text(encoding="utf-8") or name in titles, (file, name)
