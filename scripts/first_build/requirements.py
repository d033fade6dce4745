"""Prints the requirements of pyproject.toml, one a line: first to build with, then to run with,
then those of pictures.

    .venv/bin/python -m scripts.first_build.requirements pyproject.toml

So downloads are a separate step, and the next step only compiles.
"""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def requirements(path: Path) -> list[str]:
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    project = found["project"]
    pictures = project["optional-dependencies"]["vision"]
    return [*found["build-system"]["requires"], *project["dependencies"], *pictures]


def main(arguments: Sequence[str]) -> int:
    sys.stdout.write("".join(f"{line}\n" for line in requirements(Path(arguments[0]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
