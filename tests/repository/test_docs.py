"""Tests of the documents: every named file, command and test exists."""

import re
from pathlib import Path

from tests.harness.interaction import read

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"`([a-z_]+(?:/[a-z_0-9]+)+\.(?:py|h|cpp|proto|pml|md))`")
TEST = re.compile(r"`((?:gpu/)?test_[a-z_]+\.py)::(test_[a-z_0-9]+)`")
# The change log uses the file names of its time.
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")} - {ROOT / "CHANGELOG.md"})


def test_files_that_a_page_names_exist() -> None:
    missing = [
        f"{page.name}: {name}"
        for page in PAGES
        for name in CODE.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    ]
    assert not missing, "\n".join(missing)


def test_every_fault_has_its_test() -> None:
    rows = TEST.findall((ROOT / "docs" / "faults.md").read_text(encoding="utf-8"))
    assert len(rows) > 25
    for file, name in rows:
        (path,) = ROOT.glob(f"tests/*/{Path(file).name}")
        script = path.parent / "scripts" / f"{path.stem.removeprefix('test_')}.txt"
        titles = [test.name for test in read(script)] if script.exists() else []
        assert f"def {name}(" in path.read_text(encoding="utf-8") or name in titles, (file, name)


def test_commands_that_pages_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    targets = set(listed.split())
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = re.findall(r"`make ([a-z][a-z -]*[a-z])`", text)
    assert {target for some in named for target in some.split()} <= targets
    modules = set(re.findall(r"python -m ((?:scripts|tools|tasuki)(?:\.\w+)+)", text))
    paths = {name: ROOT.joinpath(*name.removeprefix("tasuki.").split(".")) for name in modules}
    assert len(modules) > 15
    assert not [
        name
        for name, path in paths.items()
        if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists()
    ]
