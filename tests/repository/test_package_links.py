"""Tests of `.package/tasuki`: it links the package's folders for tools that read a plain
checkout."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / ".package" / "tasuki"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
IMPORTED = re.compile(r"^ *(?:from|import) (tasuki[\w.]*)", re.MULTILINE)


def test_the_links_are_the_folders_of_the_wheel() -> None:
    folders = SETTINGS["scikit-build"]["wheel"]["packages"]
    expected = {name.removeprefix("tasuki/"): folder for name, folder in folders.items()}
    links = {link.name: str(link.readlink()) for link in PACKAGE.iterdir()}
    assert links.pop("__init__.py") == "../../__init__.py"
    assert links == {name: f"../../{folder}" for name, folder in expected.items()}


def test_type_checkers_look_there() -> None:
    folder = PACKAGE.parent.name
    assert SETTINGS["pyright"]["extraPaths"] == [folder]
    assert SETTINGS["mypy"]["mypy_path"] == folder


def unresolved() -> Iterator[str]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for path in listed:
        for name in IMPORTED.findall((ROOT / path).read_text()):
            place = PACKAGE.parent.joinpath(*name.split("."))
            suffixes = (".py", ".pyi")
            if not place.is_dir() and not any(
                place.with_suffix(each).exists() for each in suffixes
            ):
                yield f"{path}: {name}"


def test_every_import_of_the_package_resolves() -> None:
    assert not list(unresolved())
