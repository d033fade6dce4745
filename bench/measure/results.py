"""The storage of measured runs, with a Markdown page beside them.

`NAME.json` holds one run. `TOPIC.jsonl` holds all runs of a topic, one a line. `TOPIC.jsonl#RUN`
names the run, and replaces a line of the same name. The page of a topic, TOPIC.md, has a section
for each run. Text written by hand above the page's mark stays. REQUIRES: one process writes a file
at a time. Raises the errors of reading and writing files.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Document = Mapping[str, Any]
"""A run's JSON object. "run": its name among the runs of its topic."""

OUT = "keep the run: NAME.json, or a line of TOPIC.jsonl or TOPIC.jsonl#RUN; a page beside it"
_MARK = "<!-- runs -->"


@dataclass(frozen=True)
class Section:
    """A run's section of a page. title: the subject of the measurement. body: Markdown, without a
    final newline."""

    title: str
    body: str


Describe = Callable[[Document], Section]


@dataclass(frozen=True)
class RunFile:
    """The place of a run in a file. run: its name in a topic's file; empty in a file of its own."""

    path: Path
    run: str = ""

    @classmethod
    def of(cls, out: str | Path, name: str) -> "RunFile":
        """Return the place of a run. out: a path in the form of OUT; without .jsonl the run has its
        own file. name: name of the run if `out` names none; a taken name gets a number."""
        file, _, run = str(out).partition("#")
        path = Path(file)
        if path.suffix != ".jsonl":
            return cls(Path(out))
        known = {each.get("run") for each in read_runs(path)}
        number = 2
        free = name
        while free in known:
            free, number = f"{name} ({number})", number + 1
        return cls(path, run or free)

    def keep(self, document: Document, describe: Describe) -> None:
        """Write the run to its file, and rewrite the page. A run of the same name is replaced in
        its place. describe: turns a run into its section."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.run:
            self.path.write_text(json.dumps(document, indent=1) + "\n")
            section = describe(document)
            self.path.with_suffix(".md").write_text(f"# {section.title}\n\n{section.body}\n")
            return
        runs = list(read_runs(self.path))
        names = [each.get("run") for each in runs]
        place = names.index(self.run) if self.run in names else len(runs)
        runs[place : place + 1] = [{"run": self.run, **document}]
        write_runs(self.path, runs)
        write_page(self.path, describe)


def read_runs(path: Path) -> Sequence[dict[str, Any]]:
    """Return the runs of a topic, or none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_runs(path: Path, runs: Iterable[Document]) -> None:
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))


def write_page(path: Path, describe: Describe) -> None:
    """Write the page of a topic from all its runs. path: the file of runs. describe: turns a run
    into its section."""
    sections = [(run["run"], describe(run)) for run in read_runs(path)]
    parts = [f"## {run}\n\n{one.title}. {one.body}" for run, one in sections]
    put_below_mark(path, "\n\n".join(parts))


def put_below_mark(path: Path, text: str) -> None:
    """Replace the text below the mark on the page (made if missing) of the file of runs `path`."""
    page = path.with_suffix(".md")
    by_hand = page.read_text().partition(_MARK)[0] if page.exists() else ""
    head = by_hand.rstrip() or f"# {path.stem.replace('_', ' ')}"
    page.write_text(f"{head}\n\n{_MARK}\n\n{text}\n")


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]
