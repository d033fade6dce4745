"""Collects the project's English by kind: docstrings, comments, error and help texts, documents.

Reads the working tree as git lists it, and the newest commits' subjects.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of a statement with statements inside."""
SUBJECTS = 50
"""Number of newest commits with measured subjects."""
_GENERATED = ("_pb2", "docs/results/")
_DIRECTIVE = re.compile(r"#\s*(noqa|type:|ruff|pragma|fmt:|mypy|pyright|!)")
_C_COMMENT = re.compile(r"//[/!]?<? ?(.*)$")
_INSTRUCTION = re.compile(r"^\s*//\s*(NOLINT|clang-format|SPDX)")


class Kind(StrEnum):
    DOCSTRINGS = "docstrings"
    COMMENTS = "comments"
    ERRORS = "errors"
    HELP = "help"
    DOCS = "docs"
    CHANGELOG = "changelog"
    SUBJECTS = "subjects"


@dataclass(frozen=True)
class Text:
    """A text to measure. place: `file:line`, a flag, or a commit."""

    place: str
    text: str


def texts(kind: Kind) -> list[Text]:
    """Return all texts of one kind."""
    return list(_SOURCES[kind]())


def _docstrings() -> Iterator[Text]:
    for path, statement in _statements():
        match statement:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield Text(f"{path}:{statement.lineno}", _dedented(text))


def _comments() -> Iterator[Text]:
    """Yield the comments of Python, C++ and proto files; consecutive lines are one text."""
    for path in _listed("*.py", "*.pyi"):
        yield from _joined(path, _python_comments(path))
    for path in _listed("*.h", "*.cpp", "*.proto"):
        yield from _joined(path, _c_comments(path))


def _python_comments(path: str) -> Iterator[tuple[int, str]]:
    source = (ROOT / path).read_text(encoding="utf-8")
    # Most files have no comment, and splitting a file into tokens takes long.
    if "#" not in source:
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not _DIRECTIVE.match(token.string):
            yield token.start[0], token.string.lstrip("#: ")


def _c_comments(path: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
        found = _C_COMMENT.search(line)
        # Skip the slashes of an address.
        if found and '"' not in line[: found.start()] and not _INSTRUCTION.match(line):
            yield number, found[1]


def _joined(path: str, lines: Iterator[tuple[int, str]]) -> Iterator[Text]:
    begin, last, parts = 0, -1, list[str]()
    for number, line in lines:
        if parts and number != last + 1:
            yield Text(f"{path}:{begin}", "\n".join(parts))
            parts = []
        if not parts:
            begin = number
        parts.append(line)
        last = number
    if parts:
        yield Text(f"{path}:{begin}", "\n".join(parts))


def _errors() -> Iterator[Text]:
    """Yield the literal texts of raised errors with three words or more."""
    for path, node in _statements():
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                text = _literal(argument)
                if text and len(text.split()) >= 3:
                    yield Text(f"{path}:{node.lineno}", text)


def _literal(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_literal(value) or "`x`" for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _literal(left) + _literal(right)
    return ""


def _help() -> Iterator[Text]:
    """Yield the `--help` texts of each command and each flag of `tasuki`."""
    from tasuki.cli.completion import described
    from tasuki.utils.program import COMMANDS

    for name in COMMANDS:
        command = described(name)
        yield Text(f"tasuki {name}", command.about)
        for flag in command.flags:
            if flag["help"]:
                yield Text(f"tasuki {name} {flag['flags'][-1]}", flag["help"])


def _documents() -> Iterator[Text]:
    for path in _listed("*.md"):
        if not path.endswith("CHANGELOG.md"):
            yield Text(path, (ROOT / path).read_text(encoding="utf-8"))


def _changelog() -> Iterator[Text]:
    yield Text("CHANGELOG.md", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))


def _subjects() -> Iterator[Text]:
    for line in _git("log", f"-{SUBJECTS}", "--no-merges", "--format=%h %s").splitlines():
        commit, _, subject = line.partition(" ")
        yield Text(commit, subject)


@cache
def _statements() -> tuple[tuple[str, ast.stmt], ...]:
    """Return the expressions and raised errors among the statements of all modules, each with its
    file. No tree is kept, because the garbage collector would visit all of them again and again."""
    found = list[tuple[str, ast.stmt]]()
    for path in _listed("*.py"):
        # Expressions have no statements inside, so only blocks are searched.
        waiting: list[ast.AST] = [ast.parse((ROOT / path).read_text(encoding="utf-8"))]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Expr | ast.Raise):
                found.append((path, node))
            for name in _BLOCKS:
                waiting += getattr(node, name, ())
    return tuple(found)


def _listed(*patterns: str) -> list[str]:
    listed = _git("ls-files", "-co", "--exclude-standard", *patterns).splitlines()
    return [
        path
        for path in listed
        if not any(part in path for part in _GENERATED) and (ROOT / path).is_file()
    ]


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def _dedented(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


_SOURCES = {
    Kind.DOCSTRINGS: _docstrings,
    Kind.COMMENTS: _comments,
    Kind.ERRORS: _errors,
    Kind.HELP: _help,
    Kind.DOCS: _documents,
    Kind.CHANGELOG: _changelog,
    Kind.SUBJECTS: _subjects,
}
