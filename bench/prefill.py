"""`tasuki bench prefill`: the time to an uncached prompt's first token, and the cost of layer
ticks.

The time counts from the prompt's Submit. A tick raises the step counter after a layer of a forward.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import median

import torch

from tasuki.bench.measure.draft_turns import DraftPair, beside_without
from tasuki.bench.measure.floors import ModelFloor
from tasuki.bench.measure.gpu_timeline import add_kernels, work_of
from tasuki.bench.measure.rank_parts import beside_one_rank, rank_rig
from tasuki.bench.measure.report import Report, Row
from tasuki.bench.measure.rig import Rig, page_ids, random_parts
from tasuki.bench.measure.timing import once_seconds
from tasuki.bench.measure.transformers_peer import prefill_seconds
from tasuki.engine.runner.cuda_runner import LayerEvents
from tasuki.model.forward import Batch, LayerHooks, NullHooks, SequenceSlice
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.utils.flags import parse_configs
from tasuki.utils.options import option

from .config import BenchConfig, free_memory
from .errors import BenchError
from .workload import (
    MOST_ENTRIES_OF_A_PROMPT,
    MOST_TICK_COST,
    PREFILL_PEER_RATIO,
    PREFILL_TARGETS,
    RANK_PREFILL_TARGETS,
)

_PAIRS = 15
_WARMUPS = 2


@dataclass(frozen=True)
class TickCost:
    """Median seconds of a forward. ticked: with a tick of the step counter after each layer. plain:
    without ticks."""

    ticked: float
    plain: float


def tick_cost(rig: Rig, tokens: int) -> TickCost:
    """Measure the cost of ticks in the forward of a prompt of `tokens` tokens. The same forward
    runs with and without ticks, in alternation in one run, so clock drift affects both. REQUIRES: a
    GPU; the arena has no pages in use or published, because its pages are overwritten."""
    parts = rig.parts
    layout, device = parts.arena.layout, parts.arena.bytes.device
    count = -(-tokens // PAGE_TOKENS)
    pages = page_ids(layout, range(2, 3 + count // layout.pages_per_slab))[:count]
    batch = Batch.pack([SequenceSlice(rig.prompt(tokens), 0, pages, 0, 1)])

    def seconds(hooks: LayerHooks) -> float:
        return once_seconds(lambda: parts.model.forward(batch, parts.arena, hooks), device)

    ticks, none = LayerEvents(parts.steps, len(layout.layers)), NullHooks()
    with torch.inference_mode():
        pairs = [(seconds(ticks), seconds(none)) for _ in range(_WARMUPS + _PAIRS)][_WARMUPS:]
    return TickCost(*(median(times) for times in zip(*pairs, strict=True)))


_PROFILED_PROMPTS = 2


@dataclass(frozen=True)
class PrefillConfig:
    prompts: str = option("8192,50000", "tokens of each prompt, by commas")
    repeats: int = option(5, "other prompts of the same length; the median counts")
    peer: bool = option(False, "time transformers on the same lengths as well")
    draft_layer: str = option(
        "off",
        "auto: an engine that keeps a draft layer's entries beside one without, by turns",
        ("auto", "off"),
    )
    kernels: bool = option(False, "time each kernel of a prompt as well")

    def __post_init__(self) -> None:
        if self.draft_layer == "auto" and self.peer:
            raise ValueError("draft_layer auto measures no peer: leave that out")

    def lengths(self) -> list[int]:
        return [int(text) for text in self.prompts.split(",")]


def main(argv: Sequence[str]) -> int:
    config, own = parse_configs(
        "tasuki bench prefill", "Time cold prefills.", argv, BenchConfig, PrefillConfig
    )
    if not config.asked_form.is_plain and own.draft_layer == "auto":
        raise BenchError(
            f"{config.asked_form.name} is measured without a draft layer alone: leave out "
            "draft_layer, or quantization and kv_dtype"
        )
    if config.tensor_parallel > 1 and (not config.asked_form.is_plain or own.draft_layer == "auto"):
        raise BenchError(
            "tensor_parallel is measured with plain weights and no draft layer: leave out "
            "quantization, kv_dtype and draft_layer"
        )
    if own.kernels and config.device == "cpu":
        raise BenchError("kernels are of a GPU: leave that out, or give --device cuda")
    model = config.model_config()
    report = config.reported(f"prefill {config.model}")
    if own.draft_layer == "auto":
        _pair(config, own, report)
        return 0
    # Before the engine takes all memory.
    peers = {
        length: {"transformers": prefill_seconds(model, config.torch_device, length)}
        for length in own.lengths()
        if own.peer
    }
    plain: dict[int, float] = {}
    for form in config.forms:
        engine = config.engine_config(form)
        parts = random_parts(model, engine, quantization=form.quantization)
        rig = Rig(model, engine, parts)
        floor = ModelFloor.of(model, parts.layout, report.floors, form.quantization)
        for length in own.lengths():
            seconds = _prefills(rig, length, own.repeats)
            row = _row(config.model, length, seconds, floor, peers.get(length, {}))
            report.add(form.row(row, plain.get(length)))
            plain.setdefault(length, row.seconds)
            if own.kernels:
                work = work_of(partial(_prefills, rig, length, 0), _PROFILED_PROMPTS)
                add_kernels(report, row.name, work, _PROFILED_PROMPTS)
        if config.device == "cuda" and form.is_plain:
            report.add(_tick_row(rig, min(own.lengths())))
        if config.device == "cuda":
            report.note(config.memory_note(engine, form))
        del rig, parts
        free_memory(config.torch_device)
    if config.tensor_parallel > 1:
        _ranks(config, own, report, plain)
    return 0


def _ranks(
    config: BenchConfig, own: PrefillConfig, report: Report, alone: Mapping[int, float]
) -> None:
    """Measure prompts on several ranks. alone: seconds of a prompt with one rank, by its length."""
    with rank_rig(config.of_ranks()) as (rig, part):
        floor = ModelFloor.of(part, rig.parts.layout, report.floors)
        for length in own.lengths():
            row = _row("", length, _prefills(rig, length, own.repeats), floor, {})
            least = RANK_PREFILL_TARGETS.get((config.model, length))
            report.add(beside_one_rank(row, config.tensor_parallel, alone.get(length), least))


def _pair(config: BenchConfig, own: PrefillConfig, report: Report) -> None:
    pair = DraftPair.of(config.model_config(), config.engine_config_of_two())
    rigs = (pair.kept, pair.off)
    kept, off = (ModelFloor.of(rig.model, rig.parts.layout, report.floors) for rig in rigs)
    for length in own.lengths():
        turns = pair.prefill(length, own.repeats)
        report.add(_row(config.model, length, [*chain(*turns.off)], off, {}))
        row = _row("", length, [*chain(*turns.kept)], kept, {})
        report.add(beside_without(row, turns, MOST_ENTRIES_OF_A_PROMPT))


def _prefills(rig: Rig, length: int, repeats: int) -> list[float]:
    """Return the seconds to each prompt's first token, after one untimed prompt. length: tokens of
    a prompt."""
    seconds = []
    for _ in range(1 + repeats):
        answer = rig.submit(rig.prompt(length), 1)
        rig.run()
        seconds.append(answer.first_token_seconds)
        rig.flush()
    return seconds[1:]


def _tick_row(rig: Rig, length: int) -> Row:
    cost = tick_cost(rig, length)
    return Row(
        f"forward of {length} tokens, ticking layer by layer",
        cost.ticked,
        target=f"< {MOST_TICK_COST:.0%} more than without ticks",
        met=cost.ticked < (1 + MOST_TICK_COST) * cost.plain,
        others={"without ticks": cost.plain},
        extra={"more %": 100 * (cost.ticked / cost.plain - 1)},
    )


def _row(
    model: str,
    length: int,
    seconds: Sequence[float],
    floor: ModelFloor,
    peers: dict[str, float],
) -> Row:
    limit = PREFILL_TARGETS.get((model, length))
    typical = median(seconds)
    asked = [] if limit is None else [(f"<= {limit:g} s", typical <= limit)]
    for name, peer in peers.items():
        asked.append((f">= {PREFILL_PEER_RATIO:g}x {name}", peer >= PREFILL_PEER_RATIO * typical))
    row = Row(
        f"prompt of {length} tokens, to its first token",
        typical,
        floor.prefill(length),
        others=peers,
        extra={"tokens/s": length / typical, "slowest s": max(seconds)},
    )
    return row.asked(*asked)
