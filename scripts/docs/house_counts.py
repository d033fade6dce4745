"""`python -m scripts.docs.house_counts [COMMIT ...]`: prints the size and shape of the source code,
by commit.

Reads files as git has them, without a checkout; `.` is the working tree. Prints Markdown.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
ROOMS = (
    *("cli", "client", "dashboard", "decode_node", "engine", "model", "prefill_node", "pycache"),
    *("routing", "server", "transfer", "utils"),
)
_CONTROL = (
    *(
        "engine/handover/",
        "prefill_node/",
        "decode_node/",
        "transfer/lifecycle/",
        "transfer/protocol/",
    ),
    *("transfer/fencing/", "transfer/control/", "transfer/liveness/", "engine/messages/handover"),
)
_MANY_PARAMETERS = 9
_LEAST_LINES, _MOST_LINES = 80, 400

Sources = Mapping[str, str]
"""Source texts of files, by path."""


def sources(commit: str) -> Sources:
    """Return the Python files of a commit, or of the working tree if `commit` is `.`; generated
    files are left out."""
    if commit == ".":
        listed = _git("ls-files", "-co", "--exclude-standard").splitlines()
        paths = [path for path in listed if _is_counted(path) and (ROOT / path).exists()]
        return {path: (ROOT / path).read_text() for path in paths}
    paths = list(filter(_is_counted, _git("ls-tree", "-r", "--name-only", commit).splitlines()))
    asked = "".join(f"{commit}:{path}\n" for path in paths)
    answer = subprocess.run(
        ["git", "cat-file", "--batch"],
        cwd=ROOT,
        input=asked.encode(),
        capture_output=True,
        check=True,
    ).stdout
    found = {}
    for path in paths:
        head, _, answer = answer.partition(b"\n")
        size = int(head.split()[-1])
        found[path], answer = answer[:size].decode(), answer[size + 1 :]
    return found


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def _is_counted(path: str) -> bool:
    return path.endswith(".py") and "_pb2" not in path


@dataclass(frozen=True)
class House:
    files: Sources

    @cached_property
    def production(self) -> Sources:
        """Return the paths of the product's modules, without the `__init__` of packages."""
        return {
            path: text
            for path, text in self.files.items()
            if path.split("/")[0] in ROOMS and not path.endswith("__init__.py")
        }

    @cached_property
    def trees(self) -> Mapping[str, ast.Module]:
        return {path: ast.parse(text) for path, text in self.production.items()}

    def below(self, *folders: str) -> Sources:
        return {path: text for path, text in self.files.items() if path.startswith(folders)}

    @cached_property
    def importers(self) -> Counter[str]:
        """Return, for each product module, the number of other modules importing it."""
        names = {_module(path): path for path in self.production}
        counts: Counter[str] = Counter()
        for path, tree in self.trees.items():
            counts.update({names[name] for name in _imported(path, tree) if name in names} - {path})
        return counts

    @property
    def definitions(self) -> Sequence[tuple[str, bool]]:
        """Return the name of each public class and function, and True if it has a docstring."""
        return [
            (node.name, ast.get_docstring(node) is not None)
            for tree in self.trees.values()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and not node.name.startswith("_")
        ]

    @property
    def wide_constructors(self) -> int:
        """Return the number of constructors with nine parameters or more, without `self`."""
        return sum(
            isinstance(node, ast.FunctionDef)
            and node.name == "__init__"
            and len((*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
            > _MANY_PARAMETERS
            for tree in self.trees.values()
            for node in ast.walk(tree)
        )


def _module(path: str) -> str:
    return ".".join(PurePosixPath(path).with_suffix("").parts)


def _imported(path: str, tree: ast.Module) -> set[str]:
    """Return the names of this package's modules imported by a file. A name after `from` counts
    together with its module."""
    package = PurePosixPath(path).parts[:-1]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("tasuki.") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            parts = (*base, *(node.module or "").split(".")) if node.module else base
            name = ".".join(parts).removeprefix("tasuki.")
            found |= {name, *(f"{name}.{alias.name}" for alias in node.names)}
    return found


def code_lines(text: str) -> int:
    """Return the number of code lines of a source text. Blank lines, comments, docstrings and
    imports do not count."""
    lines = text.splitlines()
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_import or (is_text and isinstance(node.value.value, str)):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(
        number not in left_out and bool(line.strip()) and not line.lstrip().startswith("#")
        for number, line in enumerate(lines, 1)
    )


def _lines(files: Sources) -> int:
    return sum(text.count("\n") for text in files.values())


def _share(parts: Sequence[bool]) -> str:
    return f"{100 * sum(parts) / max(1, len(parts)):.1f}%"


ROWS: Mapping[str, Callable[[House], object]] = {
    "production modules without `__init__.py`": lambda house: len(house.production),
    "of them with 80 to 400 lines": lambda house: _share(
        [_LEAST_LINES <= text.count("\n") <= _MOST_LINES for text in house.production.values()]
    ),
    "lines of the longest": lambda house: max(
        map(len, map(str.splitlines, house.production.values()))
    ),
    "code lines of production": lambda house: sum(map(code_lines, house.production.values())),
    "public definitions with a docstring": lambda house: _share(
        [has for _, has in house.definitions]
    ),
    "hand-over control plane, files": lambda house: len(house.below(*_CONTROL)),
    "hand-over control plane, lines": lambda house: _lines(house.below(*_CONTROL)),
    "bench, scripts and tools, lines": lambda house: _lines(
        house.below("bench/", "scripts/", "tools/")
    ),
    "tests, lines": lambda house: _lines(house.below("tests/")),
    "modules with one importer": lambda house: sum(
        count == 1 for count in house.importers.values()
    ),
    "`Callable[`": lambda house: sum(text.count("Callable[") for text in house.production.values()),
    "constructors of 9 or more parameters": lambda house: house.wide_constructors,
}


def main(commits: Sequence[str]) -> int:
    houses = [House(sources(commit)) for commit in commits]
    print("| what |", " | ".join(commits), "|")
    print("| --- |", " | ".join("---" for _ in commits), "|")
    for name, count in ROWS.items():
        print(f"| {name} |", " | ".join(str(count(house)) for house in houses), "|")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["."]))
