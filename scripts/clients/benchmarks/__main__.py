"""`python -m scripts.clients.benchmarks [TOOL ...]`: runs benchmark tools against answers of known
timing and prints what each reports, beside the truth.

Exit status 0 only where every tool ran and no request failed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.clients.benchmarks.report import Report
from scripts.clients.benchmarks.scripted_server import MODEL, Served, scripted_server
from scripts.clients.benchmarks.scripted_stream import SCRIPTS, Script
from scripts.clients.benchmarks.tools import TOOLS, Task
from scripts.clients.install import install, version
from scripts.common.command import head, row, show
from tasuki.model.named_checkpoints import embedded_model

_REQUESTS = 6
_SECONDS = 300
_HEAD = head(
    *("tool", "first token, ms", "first of the answer, ms", "tokens an answer"),
    *("a token after, ms", "a chunk after, ms", "whole, ms", "requests asked, sent"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.clients.benchmarks")
    parser.add_argument("tools", nargs="*", choices=[*TOOLS, []], default=[])
    parser.add_argument("--script", choices=SCRIPTS, help="one of them; all by default")
    parser.add_argument("--requests", type=int, default=_REQUESTS, help="of each run")
    asked = parser.parse_args()
    chosen = asked.tools or [*TOOLS]
    for tool in chosen:
        install(tool)
    folder = Path(tempfile.mkdtemp(prefix="tasuki-benchmarks-"))
    good = True
    for name in [asked.script] if asked.script else SCRIPTS:
        print(f"\n**{name}**\n\n{_HEAD}\n{_truth(SCRIPTS[name])}", flush=True)
        for tool in chosen:
            # A tool takes a comma for the end of a setting.
            own = folder / name.replace(", ", "-") / tool
            own.mkdir(parents=True)
            good &= _row(tool, SCRIPTS[name], own, asked.requests)
    print(f"\nbenchmarks: {'PASSED' if good else 'FAILED'}; outputs are in {folder}")
    return 0 if good else 1


def _truth(script: Script) -> str:
    """The row of what happened, by the script."""
    tokens = f"{script.text_tokens} of text, {script.written_tokens} written"
    gaps = (f"{script.gap_ms:.1f}", f"{script.chunk_gap_ms:.1f}")
    return row("truth", script.first_text_ms, 300, tokens, *gaps, script.end_ms, "")


def _row(tool: str, script: Script, folder: Path, requests: int) -> bool:
    """Run the tool and print its row; whether it ran and nothing failed."""
    with scripted_server(script) as served:
        task = Task(served.url, MODEL, embedded_model(), folder, requests)
        report = _reported(tool, task)
    name = f"{tool} {version(tool)}"
    if report is None or not report.requests or report.failed:
        with open(folder / "output", "a", encoding="utf-8") as output:
            output.write(f"asked for and not there: {served.unknown}\n")
    if report is None:
        show(row(name, f"no result: see {folder}/output", *[""] * 6))
        return False
    show(row(name, *_cells(report, served)))
    return report.requests > 0 and not report.failed


def _reported(tool: str, task: Task) -> Report | None:
    """What it report; None where it failed. Its words are in the folder's file `output`."""
    run = TOOLS[tool]
    home = {"HF_HOME": str(task.folder / "hub")}
    with open(task.folder / "output", "w", encoding="utf-8") as output:
        done = subprocess.run(
            run.command(task),
            cwd=task.folder,
            env={**os.environ, **home, **run.environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
        )
    try:
        return run.read(task.folder) if done.returncode == 0 else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        with open(task.folder / "output", "a", encoding="utf-8") as output:
            output.write(f"{error!r}\n")
        return None


def _cells(report: Report, served: Served) -> list[str]:
    figures = (
        *(report.first_ms, report.answer_ms, report.tokens),
        *(report.per_token_ms, report.per_chunk_ms, report.whole_ms),
    )
    cells = ["-" if figure is None else f"{figure:.1f}" for figure in figures]
    return [*cells, f"{report.requests}, {served.requests}"]


if __name__ == "__main__":
    sys.exit(main())
