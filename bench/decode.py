"""`tasuki bench decode`: the time of a decode step of a whole model, batch by batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from statistics import fmean, median

from tasuki.bench.measure.draft_pair import DraftPair
from tasuki.bench.measure.model_floor import ModelFloor
from tasuki.bench.measure.report import Report, Row
from tasuki.bench.measure.rig import Answer, Rig
from tasuki.utils.config.flags import parse_configs
from tasuki.utils.config.options import option

from .config import BenchConfig
from .errors import BenchError
from .grammar import GRAMMAR
from .idle import idle_between_steps
from .transformers_peer import decode_seconds
from .workload import (
    DECODE_PEER_RATIO,
    DECODE_TARGETS,
    GRAMMAR_RATIO,
    IDLE_BATCH,
    IDLE_SECONDS,
    MOST_ENTRIES_OF_A_STEP,
    Point,
)

_PROFILED_STEPS = 16


@dataclass(frozen=True)
class DecodeConfig:
    points: str = option("1x50000,16x8192,64x8192", "BATCHxCONTEXT, by commas")
    steps: int = option(64, "timed, after a few that are not")
    warmup_steps: int = option(8, "after every request decodes")
    constrained: float = option(0.0, "share of each batch that follows a grammar, timed as well")
    peer: bool = option(False, "time transformers on the points of one request as well")
    draft_layer: str = option(
        "off",
        "auto: an engine that keeps a draft layer's entries beside one without, by turns",
        ("auto", "off"),
    )

    def __post_init__(self) -> None:
        self.parsed()
        if self.draft_layer == "auto" and (self.constrained or self.peer):
            raise ValueError("draft_layer auto measures neither constrained nor peer: leave them")
        if not 0 <= self.constrained <= 1:
            raise ValueError(f"constrained must be in [0, 1], not {self.constrained}")

    def parsed(self) -> list[Point]:
        return [Point.parse(text) for text in self.points.split(",")]


def main(argv: Sequence[str]) -> int:
    config, own = parse_configs(
        "tasuki bench decode", "Time decode steps.", argv, BenchConfig, DecodeConfig
    )
    model = config.model_config()
    with config.reported(f"decode {config.model}") as report:
        if own.draft_layer == "auto":
            _pair(config, own, report)
            return 0
        # Before the engine takes all memory.
        peers = {
            point: {"transformers": decode_seconds(model, config.torch_device, point.context)}
            for point in own.parsed()
            if own.peer and point.batch == 1
        }
        engine = config.engine_config()
        rig = Rig(model, engine)
        floor = ModelFloor.of(model, rig.parts.layout, report.floors)
        for point in own.parsed():
            answers = _start(rig, point)
            steps = _steps(rig, answers, own)
            report.add(_row(config.model, point, steps, floor, own, peers.get(point, {})))
            if config.device == "cuda":
                _add_idle(report, rig, point)
            rig.abort(answers)
            rig.flush()
            if own.constrained:
                _add_constrained(report, rig, point, own, fmean(steps))
        if config.device == "cuda":
            report.note(config.memory_note(engine))
    return 0


def _pair(config: BenchConfig, own: DecodeConfig, report: Report) -> None:
    pair = DraftPair.of(config.model_config(), config.engine_config_of_two())
    rigs = (pair.kept, pair.off)
    kept, off = (ModelFloor.of(rig.model, rig.parts.layout, report.floors) for rig in rigs)
    for point in own.parsed():
        answers = _start(pair.kept, point), _start(pair.off, point)
        turns = pair.decode(answers, own.steps, own.warmup_steps)
        without = [*chain(*turns.off)]
        report.add(_row(config.model, point, without, off, own, {}))
        row = _row("", point, [*chain(*turns.kept)], kept, own, {})
        report.add(
            replace(
                row,
                name=f"{row.name}, with a draft layer",
                target=f"<= {MOST_ENTRIES_OF_A_STEP:.1%} slower than without",
                met=turns.ratio <= 1 + MOST_ENTRIES_OF_A_STEP,
                others={"without": median(without)},
                extra={"slower %": 100 * (turns.ratio - 1), **row.extra},
            )
        )
        for rig, some in zip(rigs, answers, strict=True):
            rig.abort(some)
            rig.flush()


def _add_constrained(
    report: Report, rig: Rig, point: Point, own: DecodeConfig, plain: float
) -> None:
    """plain: mean seconds of a step in which no answer follows a grammar."""
    count = round(own.constrained * point.batch)
    answers = _start(rig, point, count)
    # The mean: short and long steps take turns.
    seconds = fmean(_steps(rig, answers, own))
    rig.abort(answers)
    rig.flush()
    report.add(
        Row(
            f"step of {point.batch} x {point.context} tokens, {count} follow a grammar",
            seconds,
            target=f"<= {GRAMMAR_RATIO:g}x the step without",
            met=seconds <= GRAMMAR_RATIO * plain,
            extra={"times the step without": seconds / plain},
        )
    )


def _start(rig: Rig, point: Point, constrained: int = 0) -> list[Answer]:
    """Requests that all decode, the first `constrained` of them by a grammar; the first ones answer
    while the last ones are prefilled."""
    grammars = [GRAMMAR if number < constrained else None for number in range(point.batch)]
    answers = [
        rig.submit(rig.prompt(point.context), point.context, grammar) for grammar in grammars
    ]
    rig.run_until_tokens(answers, 1)
    return answers


def _steps(rig: Rig, answers: Sequence[Answer], own: DecodeConfig) -> list[float]:
    """Seconds of each timed step."""
    youngest = max(answers, key=lambda answer: answer.times[0])
    rig.run_until_tokens([youngest], own.warmup_steps + own.steps + 1)
    times = youngest.times[own.warmup_steps :]
    return [after - before for before, after in pairwise(times)]


def _add_idle(report: Report, rig: Rig, point: Point) -> None:
    name = f"GPU idle between steps of {point.batch} x {point.context} tokens"
    judged = point.batch == IDLE_BATCH
    try:
        seconds = idle_between_steps(rig.step, _PROFILED_STEPS)
    except BenchError as error:
        # Where the driver lets no profiler in, the times above stand all the same.
        report.note(f"{name}: not measured, since {error}")
        return
    report.add(
        Row(
            name,
            seconds,
            target=f"< {IDLE_SECONDS * 1e6:g} us" if judged else "",
            met=seconds < IDLE_SECONDS if judged else None,
        )
    )


def _row(
    model: str,
    point: Point,
    steps: Sequence[float],
    floor: ModelFloor,
    own: DecodeConfig,
    peers: dict[str, float],
) -> Row:
    seconds = median(steps)
    least = floor.decode(point.batch, point.context + own.warmup_steps + own.steps / 2)
    limit, floors = DECODE_TARGETS.get((model, point), (None, None))
    targets = []
    if limit is not None:
        targets.append((f"<= {limit * 1e3:g} ms", seconds <= limit))
    if floors is not None:
        targets.append((f"<= {floors:g}x floor", seconds <= floors * least))
    for name, peer in peers.items():
        targets.append((f">= {DECODE_PEER_RATIO:g}x {name}", peer >= DECODE_PEER_RATIO * seconds))
    return Row(
        f"step of {point.batch} x {point.context} tokens",
        seconds,
        least,
        target=", ".join(text for text, _ in targets),
        met=all(met for _, met in targets) if targets else None,
        others=peers,
        extra={
            "tokens/s": point.batch / seconds,
            "mean ms": 1e3 * sum(steps) / len(steps),
            "p99 ms": 1e3 * sorted(steps)[int(0.99 * (len(steps) - 1))],
        },
    )
