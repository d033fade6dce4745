"""`tasuki bench serving`: the CPU cost of a node's host side, and its behaviour under many clients.

Starts real daemons (a fused node, or a prefill and a decode node), and sends requests from client
processes over real sockets. Measures CPU time by role, tokens a second, first tokens and gaps.
"""

import json
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tasuki.bench.load.client.answer import Answer
from tasuki.bench.load.client.loads import Load, WarmUp
from tasuki.bench.load.client.process import Clients, Target, clients
from tasuki.bench.load.figures import (
    Figures,
    NodeWindow,
    Window,
    endless_figures,
    handover_figures,
    node_figures,
    run_figures,
)
from tasuki.bench.load.free.model import free_shape
from tasuki.bench.load.model_folder import write_model_folder
from tasuki.bench.load.node_main import FREE, RANDOM
from tasuki.bench.load.node_process import NodeProcess, node_process
from tasuki.bench.load.serving_config import Kind, ServingConfig
from tasuki.bench.load.serving_report import ServingReport
from tasuki.bench.load.session_figures import session_figures
from tasuki.model.families.registry import config_of, published
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.utils.flags import parse_config

from .errors import BenchError

_SETTLE_SECONDS = 1.0
_PACE = 0.5
"""Pace of the measurement, as a share of the node's highest tokens a second. At this pace the API
server keeps up with the engine."""
_LIMIT_SECONDS = 5.0
_MOST_FOR_LIMIT = 256
"""Largest number of streams in the measurement of the node's highest rate."""
_SHOWN_OF_LIMIT = ("tokens_per_second", "front_us_per_token", "gap_ms", "ttft_ms")
"""Figures shown from the measurement of the node's highest rate. The engine's figures are left out:
its tokens reach clients after the window."""
_WORKING = 2
_SLOTS = 8
"""Slots for checkpoints of each session, in addition to its working slots."""
_LEAST_ARENA_MIB = 64
_AS_ON_A_GPU = ("--engine-process", "process")
"""The flags giving a cost-free model the process arrangement of a GPU node, to measure this
arrangement."""


def main(argv: Sequence[str]) -> int:
    config = parse_config("tasuki bench serving", "Serve many clients.", argv, ServingConfig)
    with tempfile.TemporaryDirectory() as folder:
        figures = _CASES[config.kind](config, Path(folder))
    report = ServingReport(config.case, asdict(config), figures)
    if config.out:
        report.write(config.out)
    print(json.dumps(report.document, indent=1) if config.json else report.as_lines())
    if config.kind is not Kind.ENDLESS:
        return 0
    if not config.json:
        print("PASSED" if figures["passed"] else "FAILED")
    return 0 if figures["passed"] else 1


def _streams(config: ServingConfig, folder: Path) -> Figures:
    return _at_a_pace(config, folder, lambda paced: run_figures(*_fused(paced, folder)))


def _endless(config: ServingConfig, folder: Path) -> Figures:
    def judged(paced: ServingConfig) -> Figures:
        run = _fused(paced, folder)
        return run_figures(*run) | endless_figures(*run)

    return _at_a_pace(config, folder, judged)


def _at_a_pace(
    config: ServingConfig, folder: Path, measure: Callable[[ServingConfig], Figures]
) -> Figures:
    """Return the figures of `measure` at a pace the API server can follow. With forwards of no
    duration a cost-free model runs ahead: answers end in the engine before clients have them, and
    its steps have few rows. So the node's highest rate is measured first, then the figures at a
    lower pace. Any other model is measured once, as configured."""
    if config.step_ms or not config.free_model:
        return measure(config)
    fastest = replace(
        config,
        endless=False,
        streams=min(config.streams, _MOST_FOR_LIMIT),
        seconds=min(config.window_seconds, _LIMIT_SECONDS),
    )
    limit = run_figures(*_fused(fastest, folder))
    step_ms = 1e3 * config.streams / (_PACE * limit["tokens_per_second"])
    paced = measure(replace(config, step_ms=step_ms, row_us=0.0, token_us=0.0))
    pace = {"step_ms": round(step_ms, 2), "tokens_per_second": paced["tokens_per_second"]}
    reached = {"tokens_per_second": limit["tokens_per_second"]}
    shown = {name: limit[name] for name in _SHOWN_OF_LIMIT}
    return paced | reached | {"pace": pace, "as_fast_as_it_goes": shown}


def _fused(config: ServingConfig, folder: Path) -> tuple[list[Answer], Window, NodeWindow]:
    with _node(config, "serve", folder) as node:
        _warm_up(config, node)
        answers, window, (measured,) = _measured(config, config.load, node, [node])
    return answers, window, measured


def _agents(config: ServingConfig, folder: Path) -> Figures:
    answers, window, node = _fused(config, folder)
    return run_figures(answers, window, node) | _of_sessions(config, answers, window, node)


def _of_sessions(
    config: ServingConfig, answers: Sequence[Answer], window: Window, node: NodeWindow
) -> Figures:
    """Return the figures of growing sessions; none of other loads."""
    gpus = config.gpus or config.nodes
    return session_figures(answers, window, node, gpus) if config.grows else {}


def _pair(config: ServingConfig, folder: Path) -> Figures:
    more = shlex.split(config.prefill_flags)
    with (
        _node(config, "prefill", folder, *more) as prefill,
        _node(config, "decode", folder, "--prefill", prefill.handover) as decode,
    ):
        _warm_up(config, decode)
        nodes = [decode, prefill]
        answers, window, (front, behind) = _measured(config, config.load, decode, nodes)
    figures = run_figures(answers, window, front) | handover_figures(behind, front)
    figures |= _of_sessions(config, answers, window, front)
    return figures | {"prefill_node": node_figures(behind, figures["tokens"])}


_CASES = {
    Kind.STREAMS: _streams,
    Kind.ENDLESS: _endless,
    Kind.AGENTS: _agents,
    Kind.PAIR: _pair,
}


def _measured(
    config: ServingConfig, load: Load, front: NodeProcess, nodes: Sequence[NodeProcess]
) -> tuple[list[Answer], Window, list[NodeWindow]]:
    """Run the load on the node `front`, sampling all `nodes`. Returns the answers, the measured
    window, and each node's samples."""
    with _clients(config, load, front) as asking:
        if not load.admitted_first:
            before = [node.begin_sample() for node in nodes]
            begin = asking.start()
            asking.wait_admitted()
            asking.stop(None)
            answers = asking.answers()
            end = max(answer.ended for answer in answers)
            after = [node.end_sample() for node in nodes]
        else:
            asking.start()
            asking.wait_admitted()
            time.sleep(_SETTLE_SECONDS)
            before = [node.begin_sample() for node in nodes]
            begin = time.monotonic()
            end = begin + config.window_seconds
            asking.stop(end)
            time.sleep(max(0.0, end - time.monotonic()))
            after = [node.end_sample() for node in nodes]
            answers = asking.answers()
    windows = [
        NodeWindow(node.role, node.pid, first, last)
        for node, first, last in zip(nodes, before, after, strict=True)
    ]
    return answers, Window(begin, end), windows


def _warm_up(config: ServingConfig, front: NodeProcess) -> None:
    """Send the agents' common prefix to the node before measuring, if configured. Growing sessions
    have none. Raises BenchError."""
    if not config.kind.has_agents or config.grows or not config.warm:
        return
    load = WarmUp(config.agents_load, config.warm)
    with _clients(config, load, front) as asking:
        asking.start()
        asking.wait_admitted()
        asking.stop(None)
        for answer in asking.answers():
            if not answer.whole:
                raise BenchError(f"a warming request failed: {answer.error or 'its tokens'}")


@contextmanager
def _clients(config: ServingConfig, load: Load, front: NodeProcess) -> Iterator[Clients]:
    address = front.http if config.protocol == "http" else front.address
    target = Target(
        config.protocol,
        address,
        _shape(config)["vocab_size"],
        config.free_model,
        config.patience,
        # Scripted answers are drawn by noise alone.
        temperature=1.0 if config.drafts else 0.0,
    )
    with clients(target, load, config.clients, config.max_seconds) as asking:
        yield asking


@contextmanager
def _node(config: ServingConfig, role: str, folder: Path, *more: str) -> Iterator[NodeProcess]:
    """Start one node. folder: its model folder and log. more: further flags of this node."""
    model = folder / "model"
    if not model.exists():
        write_model_folder(model, _shape(config))
    own = ["--weights", FREE if config.free_model else RANDOM]
    if config.quantization:
        own += ["--quantization", config.quantization]
    if config.drafts:
        own += ["--accept", config.scripted]
    if config.step_ms:
        own += ["--step-ms", f"{config.step_ms}", "--row-us", f"{config.row_us}"]
        own += ["--token-us", f"{config.token_us}"]
    sessions = config.load.sessions
    flags = ["--model", str(model), "--max-batch", str(sessions), "--prefill-chunk-tokens", "8192"]
    # The folder has no weights, and a node with a separate engine process would search it for a
    # draft layer.
    flags += ["--draft-layer", "off"]
    if config.drafts:
        flags += ["--speculate", "mtp", "--draft-tokens", str(config.drafts)]
    if config.free_model:
        flags += ["--arena-mib", str(_free_arena_mib(config))]
        flags += _AS_ON_A_GPU if role == "serve" else ()
    flags += [*shlex.split(config.node_flags), *more]
    with node_process(role, own, flags, folder / f"{role}.log") as node:
        yield node


def _shape(config: ServingConfig) -> dict[str, Any]:
    if config.free_model:
        return free_shape(config.kind.layers)
    if Path(config.model).is_dir():
        shape: dict[str, Any] = json.loads((Path(config.model) / "config.json").read_text())
        return shape
    return published(config.model)


def _free_arena_mib(config: ServingConfig) -> int:
    """Return an arena size in MiB, large enough to avoid evictions."""
    layout = config_of(_shape(config)).cache_layout("bfloat16", "bfloat16", "float32")
    sessions = config.load.sessions
    # The last page of a session is its own, and possibly the last page of each turn too.
    pages = config.tokens_held // PAGE_TOKENS + sessions * _SLOTS
    slabs = pages // layout.pages_per_slab + sessions * (_WORKING + _SLOTS)
    return max(_LEAST_ARENA_MIB, slabs * layout.slab_bytes // 2**20 + 1)
