"""Names promised by docs/stability.md stay. The version of a release agrees everywhere."""

import re
from importlib import metadata

import tasuki
from scripts.docs.public_surface import RECORD, ROOT, names

_HOW = "run `python -m scripts.docs.public_surface --write` and add a line to CHANGELOG.md"


def test_public_names_are_the_recorded_ones() -> None:
    recorded = RECORD.read_text(encoding="utf-8").splitlines()
    found = names()
    gone, new = set(recorded) - set(found), set(found) - set(recorded)
    assert not gone and not new, f"gone: {sorted(gone)}, new: {sorted(new)}; if intended, {_HOW}"
    assert recorded == found, _HOW


def test_each_kind_of_name_is_listed() -> None:
    kinds = {line.split(" ", 1)[0] for line in RECORD.read_text(encoding="utf-8").splitlines()}
    assert kinds == {"environment", "error", "flag", "http", "metric", "sdk", "wire"}


def test_the_version_stands_in_one_place_and_has_notes() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## (\d+\.\d+\.\d+) - \d{4}-\d{2}-\d{2}$", changelog, re.MULTILINE)
    assert releases[0] == tasuki.__version__
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert tasuki.__version__ not in project


def test_images_have_the_version_of_the_release() -> None:
    files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    tags = {
        (path.name, tag)
        for path in files
        for tag in re.findall(r"tasuki:(\d+\.\d+\.\d+)", path.read_text(encoding="utf-8"))
    }
    assert len(tags) >= 5
    assert {tag for _, tag in tags} == {tasuki.__version__}


def test_the_installed_package_has_the_version() -> None:
    assert metadata.version("tasuki") == tasuki.__version__
