"""What front workers are good for: python -m scripts.front_workers --streams 1024 --workers 1,2,4

Chats with a template and tool calls, on a node with a free model, for each count of front workers.
Twice each: as fast as the node goes, and at a pace that is half of the speed of the first count.
The node and its clients run on cores of their own. Needs no network.
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.command import show
from tasuki.bench.load.client.process import clients
from tasuki.bench.load.cpu_by_role import CpuSample, sample
from tasuki.bench.load.figures import Figures, NodeWindow, Window, answer_figures, node_figures
from tasuki.bench.load.free.model import free_shape
from tasuki.bench.load.node_process import NodeProcess, node_process
from tasuki.bench.load.serving_report import ServingReport
from tasuki.model.config import ModelConfig
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.utils.flags import parse_config
from tasuki.utils.options import option

from .chats import ANSWERS, CALL, Chats, ChatTarget
from .cores import cores_of, pinned
from .health import HealthProbe
from .model_folder import VOCABULARY, write_chat_folder

_PACE = 0.5
_SETTLE_SECONDS = 1.0
_PROMPT_TOKENS = 12_000
"""Of the conversations that a stream has in a window, together."""
_SLOTS = 12
"""Checkpoints of each stream that there is room for."""


@dataclass(frozen=True)
class Settings:
    streams: int = option(1024, "at a time")
    workers: str = option("1,2,4,8", "counts of front workers, one run after the other")
    answers: str = option("calls", "what the model writes", ("calls", "text"))
    turns: int = option(4, "of each conversation")
    answer: int = option(256, "tokens of an answer")
    seconds: float = option(10.0, "the window of each run")
    clients: int = option(6, "client processes")
    node_cores: str = option("", "of the node, as 0-9; not given: any")
    client_cores: str = option("", "of the clients, as 10-15; not given: any")
    max_seconds: float = option(120.0, "for all streams to be admitted, and for all to end")
    patience: float = option(60.0, "seconds without a byte until a request counts as unanswered")
    seed: str = option("1", "of the conversations")
    node_flags: str = option("", "more flags of the node")
    out: str = option("", "write JSON here, and a table beside it")
    commit: str = option("", "of the source, where it is no git tree")

    @property
    def counts(self) -> list[int]:
        return [int(count) for count in self.workers.split(",")]

    @property
    def load(self) -> Chats:
        return Chats(self.streams, self.turns, self.answer, self.seed)


def main() -> int:
    about = "Measure front workers."
    settings = parse_config("python -m scripts.front_workers", about, sys.argv[1:], Settings)
    with tempfile.TemporaryDirectory() as folder:
        figures = _figures(settings, write_chat_folder(Path(folder), ANSWERS[settings.answers]))
    case = f"{settings.streams} chats with tools, {settings.answers} as answers, front workers"
    report = ServingReport(case, {"free_model": True, **asdict(settings)}, figures)
    if settings.out:
        report.write(Path(settings.out))
    print(report.as_lines())
    return 0 if all(run["failed"] == 0 for pair in figures.values() for run in pair.values()) else 1


def _figures(settings: Settings, folder: Path) -> dict[str, dict[str, Any]]:
    figures: dict[str, dict[str, Any]] = {}
    step_ms = 0.0
    first = 0.0
    for workers in settings.counts:
        fastest = _run(settings, folder, workers, 0.0)
        first = first or fastest["tokens_per_second"]
        fastest["times_the_first"] = round(fastest["tokens_per_second"] / first, 3)
        step_ms = step_ms or 1e3 * settings.streams / (_PACE * first)
        paced = _run(settings, folder, workers, step_ms)
        paced["step_ms_asked"] = round(step_ms, 2)
        figures[f"{workers} workers"] = {"as fast as it goes": fastest, "at a pace": paced}
        for name, run in figures[f"{workers} workers"].items():
            shown = ("tokens_per_second", "front_us_per_token", "ttft_ms", "health_ms", "failed")
            show(f"{workers} workers, {name}: {json.dumps({key: run[key] for key in shown})}")
    return figures


def _run(settings: Settings, folder: Path, workers: int, step_ms: float) -> Figures:
    own = ["--weights", "free", "--step-ms", f"{step_ms}", "--answers", f"{folder}/answer.json"]
    flags = ["--model", str(folder / "model"), "--max-batch", str(settings.streams)]
    flags += ["--prefill-chunk-tokens", "8192", "--draft-layer", "off"]
    flags += ["--arena-mib", str(_arena_mib(settings.streams)), "--engine-process", "process"]
    flags += ["--front-workers", str(workers), *settings.node_flags.split()]
    with (
        pinned(cores_of(settings.node_cores)),
        node_process("serve", own, flags, folder / "log") as node,
        pinned(cores_of(settings.client_cores)),
    ):
        return _measured(settings, node)


def _arena_mib(streams: int) -> int:
    """Return so much that no page of a conversation that goes on is evicted."""
    shape = {**free_shape(4), "vocab_size": VOCABULARY}
    layout = ModelConfig.from_dict(shape).cache_layout("bfloat16", "bfloat16", "float32")
    pages = streams * _PROMPT_TOKENS // PAGE_TOKENS
    slabs = pages // layout.pages_per_slab + streams * _SLOTS
    return 64 + slabs * layout.slab_bytes // 2**20


def _measured(settings: Settings, node: NodeProcess) -> Figures:
    target = ChatTarget("http", node.http, VOCABULARY, False, settings.patience)
    probe = HealthProbe(node.http)
    with clients(target, settings.load, settings.clients, settings.max_seconds) as asking:
        asking.start()
        asking.wait_admitted()
        time.sleep(_SETTLE_SECONDS)
        own = sample(os.getpid())
        before = node.begin_sample()
        begin = time.monotonic()
        probe.start()
        asking.stop(begin + settings.seconds)
        end = begin + settings.seconds
        time.sleep(max(0.0, end - time.monotonic()))
        after, own_after = node.end_sample(), sample(os.getpid())
        health = probe.stop()
        answers = asking.answers()
    window = Window(begin, end)
    whole = [answer for answer in answers if answer.cached_tokens]
    for answer in answers:
        if answer.cached_tokens and answer.cached_tokens != answer.asked and not answer.error:
            answer.error = f"{answer.cached_tokens} of {answer.asked} tokens"
        # Events stand for tokens below: several tokens may come in one.
        answer.asked = len(answer.tokens)
    events = sum(len(answer.tokens) for answer in whole)
    per_event = sum(answer.cached_tokens for answer in whole) / events if events else 1.0
    answered = answer_figures(answers, window)
    tokens = round(answered["tokens"] * per_event)
    made = NodeWindow(node.role, node.pid, before, after)
    node_pids = {pid for pid, _ in after.cpu.threads}
    return {
        **node_figures(made, tokens),
        "made_per_second": round(made.grown("generated_tokens_total") / window.seconds, 1),
        **answered,
        "tokens": tokens,
        "tokens_per_second": round(tokens / window.seconds, 1),
        "tokens_per_event": round(per_event, 2),
        "call_events": sum(answer.tokens.count(CALL) for answer in answers),
        "health_ms": health,
        "busiest_client_core": _client_cores(own, own_after, node_pids, window.seconds),
    }


def _client_cores(before: CpuSample, after: CpuSample, node: set[int], seconds: float) -> float:
    """Return the busiest client process's share of one core: near 1 the clients are the limit."""
    shares = [
        (after.processes[pid] - before.processes.get(pid, 0.0)) / seconds
        for pid in after.processes
        if pid not in node and pid != os.getpid()
    ]
    return round(max(shares, default=0.0), 2)


if __name__ == "__main__":
    sys.exit(main())
