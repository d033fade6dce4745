"""A table of agent clients by other projects and their working features: a row for each client, a
column for each feature.

A script of `agents/` drives each client, run by the client's own interpreter. It asks a model
trained to make the requested calls (tests/tool_caller), by a published chat template.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.clients.agents.columns import COLUMNS
from scripts.clients.install import FOLDER, interpreter, pins, program
from scripts.common.command import head, row, show
from tests.harness.running_nodes import fused_node, node_pair
from tests.harness.tool_caller import tool_caller

MODEL = "caller"
ARRANGEMENTS = ("fused", "pair")
_AGENTS = Path(__file__).with_name("agents")
_SECONDS = 3600
_DRIVERS = {
    "openai": "openai_driver.py",
    "anthropic": "anthropic_driver.py",
    "litellm": "litellm_driver.py",
    "openai-agents": "frameworks/agents_driver.py",
    "langchain-openai": "frameworks/langchain_driver.py",
    "pydantic-ai": "frameworks/pydantic_ai_driver.py",
    "instructor": "instructor_driver.py",
    "smolagents": "frameworks/smolagents_driver.py",
    "llm": "llm_driver.py",
    "haystack": "frameworks/haystack_driver.py",
    "autogen": "frameworks/autogen_driver.py",
    "llama-index": "frameworks/llama_index_driver.py",
    "langgraph": "frameworks/langgraph_driver.py",
    "semantic-kernel": "frameworks/semantic_kernel_driver.py",
    "agno": "frameworks/agno_driver.py",
    "inspect-ai": "inspect_driver.py",
    "lm-eval": "lm_eval_driver.py",
}
_PROGRAMS = {"qwen-code": "qwen", "opencode": "opencode", "codex": "codex", "claude-code": "claude"}
CLIENTS = (*_DRIVERS, *_PROGRAMS, "ai-sdk")


@dataclass(frozen=True)
class AgentRun:
    """The settings of one table. template: a published chat template's name. folder: folder for
    clients' files. records: True if the rows are written into the document's table."""

    arrangement: str
    template: str
    folder: Path
    records: bool

    def run(self, clients: Sequence[str]) -> bool:
        """Run the clients and print a table, a row for each. Returns True if every cell holds."""
        show(head(f"{self.arrangement}, {self.template}", *COLUMNS))
        good = True
        with _node(self.arrangement, self.template, self.folder) as address:
            for client in clients:
                here = self.folder / f"{self.arrangement}-{client}"
                here.mkdir()
                line, holds = _row(client, address, here)
                show(line)
                good &= holds
                if self.records:
                    record(self.arrangement, CLIENTS, {client: line})
        return good


@contextmanager
def _node(arrangement: str, template: str, folder: Path) -> Iterator[str]:
    model = str(tool_caller(folder / f"model-{arrangement}", template))
    http = ("--http-bind", "127.0.0.1:0", "--served-model-name", f"{MODEL},*")
    if arrangement == "fused":
        with fused_node("--model", model, *http, arena_mib=512) as node:
            yield node.http_address
    else:
        shared = ("--model", model, "--local-prefill-tokens", "1")
        with node_pair(*shared, decode=http, arena_mib=512) as (_, node):
            yield node.http_address


def _row(client: str, address: str, folder: Path) -> tuple[str, bool]:
    """Run a client. Returns its line of the table, and True if every cell of the line holds."""
    done = subprocess.run(
        [*_command(client), f"http://{address}", MODEL, *_more(client)],
        cwd=folder,
        # The folder of `columns`, for drivers in a folder below it.
        env={**os.environ, "PYTHONPATH": str(_AGENTS)},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    (folder / "printed").write_text(done.stdout + done.stderr, encoding="utf-8")
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"columns"')]
    if done.returncode or not lines:
        print(f"    {client}: no result, see {folder}/printed", file=sys.stderr, flush=True)
        cells = ["no result", *[""] * (len(COLUMNS) - 1)]
        return row(f"{client} {pins(client)}", *cells), False
    found: dict[str, str] = json.loads(lines[-1])["columns"]
    cells = ["-" if name not in found else "no" if found[name] else "yes" for name in COLUMNS]
    for name, wrong in found.items():
        if wrong:
            print(f"    {client}, {name}: {wrong}", file=sys.stderr, flush=True)
    return row(f"{client} {pins(client)}", *cells), not any(found.values())


def _command(client: str) -> list[str]:
    if client == "ai-sdk":
        return ["node", str(_AGENTS / "ai_sdk_driver.mjs")]
    if client in _PROGRAMS:
        return [sys.executable, str(_AGENTS / "programs_driver.py")]
    return [str(interpreter(client)), str(_AGENTS / _DRIVERS[client])]


def _more(client: str) -> list[str]:
    if client == "ai-sdk":
        return [str(FOLDER / client)]
    return [str(program(client, _PROGRAMS[client])), client] if client in _PROGRAMS else []


DOCUMENT = Path(__file__).parents[2] / "docs" / "results" / "agent_clients.md"


def record(name: str, order: Sequence[str], rows: Mapping[str, str]) -> None:
    """Write rows into the document. name: name of the table. order: all clients, in row order.
    rows: each client's line, with the client and its version in the first cell. Raises ValueError
    if the document has no such table."""
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(with_rows(text, name, order, rows), encoding="utf-8")


def with_rows(text: str, name: str, order: Sequence[str], rows: Mapping[str, str]) -> str:
    table = re.compile(
        rf"(<!-- {re.escape(name)} -->\n\|[^\n]*\n\| ---[^\n]*\n)((?:\|[^\n]*\n)*)(<!-- end -->)"
    )
    found = table.search(text)
    if found is None:
        raise ValueError(f"{DOCUMENT} has no table {name}")
    before = {line.split()[1]: line for line in found[2].splitlines()}
    after = {**before, **rows}
    lines = "".join(f"{after[client]}\n" for client in order if client in after)
    return f"{text[: found.start()]}{found[1]}{lines}{found[3]}{text[found.end() :]}"
