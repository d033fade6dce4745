"""`tasuki bench page TOPIC.jsonl`: rewrites the page of a file of runs, after adding runs to the
file or splitting runs out of it."""

import json
from collections.abc import Sequence
from pathlib import Path

from tasuki.bench.errors import BenchError
from tasuki.bench.fleet.results import tables
from tasuki.bench.load import serving_report
from tasuki.bench.measure import report
from tasuki.bench.measure.results import (
    Document,
    RunFile,
    Section,
    put_below_mark,
    read_runs,
    write_page,
)
from tasuki.bench.replay import developer_traces
from tasuki.utils.flags import FlagParser

_DESCRIBE = {
    "serving": serving_report.describe,
    "traces": developer_traces.describe,
}


def main(argv: Sequence[str]) -> int:
    """Write the page. Raises BenchError if a file holds no runs, or only runs without a page made
    by this program."""
    parser = FlagParser("tasuki bench page", "The page of a file of runs.")
    parser.add_argument("file", type=Path, help="TOPIC.jsonl; TOPIC.md is its page")
    parser.add_argument(
        "--add", nargs="+", default=(), help="NAME.json, or RUN=NAME.json: its run, named so"
    )
    parser.add_argument("--split", type=Path, help="a folder: each run as TOPIC_NAME.json in it")
    values = parser.parse_args(argv)
    file: Path = values.file
    for added in values.add:
        name, _, single = added.rpartition("=")
        document = json.loads(Path(single).read_text())
        RunFile(file, name or Path(single).stem).keep(document, describe)
    runs = read_runs(file)
    if not runs:
        raise BenchError(f"{file}: holds no run: give a .json's path with --add")
    if values.split is not None:
        values.split.mkdir(parents=True, exist_ok=True)
        for run in runs:
            name = f"{file.stem}_{run.pop('run')}.json"
            (values.split / name).write_text(json.dumps(run, indent=1) + "\n")
    elif runs[0].get("bench") == "fleet":
        put_below_mark(file, tables(runs))
    else:
        write_page(file, describe)
    return 0


def describe(document: Document) -> Section:
    """Return a stored run as a page's section. Raises BenchError."""
    if "floors" in document:
        return report.describe(document)
    bench = document.get("bench", "")
    if bench not in _DESCRIBE:
        raise BenchError(f"a run of {bench or 'no bench'} has no page that is made here")
    return _DESCRIBE[bench](document)
