"""`tasuki bench decode`: the time of a decode step of a whole model, batch by batch, and the cost
of drafts, grammars and thinking budgets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from random import Random
from statistics import fmean, median

from tasuki.bench.measure.draft_turns import (
    DraftedTurns,
    DraftGain,
    DraftPair,
    Turn,
    beside_without,
)
from tasuki.bench.measure.floors import ModelFloor
from tasuki.bench.measure.gpu_timeline import add_kernels, idle_between_steps, work_of
from tasuki.bench.measure.rank_parts import beside_one_rank, rank_rig
from tasuki.bench.measure.report import Report, Row
from tasuki.bench.measure.rig import Answer, Rig, random_parts
from tasuki.bench.measure.scripted_drafts import Script
from tasuki.bench.measure.transformers_peer import decode_seconds
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tasuki.utils.flags import parse_configs
from tasuki.utils.options import option

from .config import BenchConfig, StoredForm, free_memory
from .errors import BenchError
from .grammar import GRAMMAR
from .workload import (
    ACCEPTED,
    BUDGET_RATIO,
    DECODE_PEER_RATIO,
    DECODE_TARGETS,
    DRAFT_TARGETS,
    DRAFTS,
    GRAMMAR_RATIO,
    IDLE_BATCH,
    IDLE_SECONDS,
    MOST_DRAFTED,
    MOST_ENTRIES_OF_A_STEP,
    MOST_SLOWER_BY_DRAFTS,
    RANK_DECODE_TARGETS,
    Point,
)

_BUDGET_SEED = 3
_CLOSING, _TAG = (198, 248069, 271), 248069
"""The token ids ending a thought in Qwen3.5: the whole closing text, and its tag. A smaller
vocabulary uses these ids modulo its size."""
_FAR = 1 << 20
_STEPS_BETWEEN = 4
"""Steps between two ends of thoughts: 64 sequences then think 256 tokens each."""
_PROFILED_STEPS = 16
_BUDGET_TURNS = 3
_PROMPT_TOKENS_A_STEP = 8192


@dataclass(frozen=True)
class DecodeConfig:
    points: str = option("1x50000,16x8192,64x8192", "BATCHxCONTEXT, by commas")
    steps: int = option(64, "timed, after a few that are not")
    warmup_steps: int = option(8, "after every request decodes")
    constrained: float = option(0.0, "share of each batch that follows a grammar, timed as well")
    budgets: bool = option(False, "time steps of answers with thinking budgets as well")
    peer: bool = option(False, "time transformers on the points of one request as well")
    draft_layer: str = option(
        "off",
        "auto: an engine that keeps a draft layer's entries beside one without, by turns",
        ("auto", "off"),
    )
    speculate: str = option(
        "off",
        "the drafter of steps with drafts beside steps without, by turns",
        ("mtp", "mtp+tree", "prediction", "tree", "off"),
    )
    draft_tokens: int = option(3, "drafts of a step and answer")
    kernels: bool = option(False, "where a step's time goes on the GPU, kernel by kernel, as well")
    accept: str = option(
        ACCEPTED, "how likely the drafts of a step hold where those before them do, one by one"
    )

    def __post_init__(self) -> None:
        self.parsed()
        if self.draft_layer == "auto" and (self.constrained or self.peer or self.kernels):
            raise ValueError(
                "draft_layer auto measures neither constrained, peer nor kernels: leave them"
            )
        if self.draft_tokens < 1:
            raise ValueError(f"draft_tokens must be at least 1, not {self.draft_tokens}")
        Script.parse(self.accept, self.draft_tokens)
        if self.speculate != "off" and (
            self.constrained or self.peer or self.draft_layer == "auto"
        ):
            raise ValueError(
                f"speculate {self.speculate} measures neither constrained, peer nor draft_layer: "
                "leave them"
            )
        if not 0 <= self.constrained <= 1:
            raise ValueError(f"constrained must be in [0, 1], not {self.constrained}")

    def parsed(self) -> list[Point]:
        return [Point.parse(text) for text in self.points.split(",")]


def main(argv: Sequence[str]) -> int:
    config, own = parse_configs(
        "tasuki bench decode", "Time decode steps.", argv, BenchConfig, DecodeConfig
    )
    if config.tensor_parallel > 1 and (
        not config.asked_form.is_plain
        or own.constrained
        or own.budgets
        or own.draft_layer == "auto"
        or own.speculate != "off"
    ):
        raise BenchError(
            "tensor_parallel is measured with plain weights and steps alone: leave out "
            "quantization, kv_dtype, constrained, budgets, draft_layer and speculate"
        )
    if not config.asked_form.is_plain and own.draft_layer == "auto":
        raise BenchError(
            f"{config.asked_form.name} is measured without draft_layer auto: leave that out, or "
            "quantization and kv_dtype"
        )
    if own.kernels and config.device == "cpu":
        raise BenchError("kernels are of a GPU: leave that out, or give --device cuda")
    model = config.model_config()
    report = config.reported(f"decode {config.model}")
    if own.draft_layer == "auto":
        _pair(config, own, report)
        return 0
    if own.speculate != "off":
        _drafted(config, own, report)
        return 0
    # Before the engine takes all memory.
    peers = {
        point: {"transformers": decode_seconds(model, config.torch_device, point.context)}
        for point in own.parsed()
        if own.peer and point.batch == 1
    }
    plain: dict[Point, float] = {}
    for form in config.forms:
        engine = config.engine_config(form)
        parts = random_parts(model, engine, quantization=form.quantization)
        rig = Rig(model, engine, parts)
        floor = ModelFloor.of(model, parts.layout, report.floors, form.quantization)
        for point in own.parsed():
            answers = _start(rig, point)
            steps = _steps(rig, answers, own)
            row = _row(config.model, point, steps, floor, own, peers.get(point, {}))
            report.add(form.row(row, plain.get(point)))
            plain.setdefault(point, row.seconds)
            if config.device == "cuda" and form.is_plain:
                _add_idle(report, rig, point)
            if own.kernels:
                work = work_of(rig.step, _PROFILED_STEPS)
                add_kernels(report, row.name, work, _PROFILED_STEPS)
            rig.end(answers)
            if own.constrained:
                _add_constrained(report, rig, point, own, fmean(steps))
            if own.budgets:
                _add_budgets(report, rig, point, own)
        if config.device == "cuda":
            report.note(config.memory_note(engine, form))
        del rig, parts
        free_memory(config.torch_device)
    if config.tensor_parallel > 1:
        _ranks(config, own, report, plain)
    return 0


def _ranks(
    config: BenchConfig, own: DecodeConfig, report: Report, alone: Mapping[Point, float]
) -> None:
    """Measure decode steps of several ranks. alone: seconds of a step with one rank, by point."""
    with rank_rig(config.of_ranks()) as (rig, part):
        floor = ModelFloor.of(part, rig.parts.layout, report.floors)
        for point in own.parsed():
            answers = _start(rig, point)
            row = _row("", point, _steps(rig, answers, own), floor, own, {})
            least = RANK_DECODE_TARGETS.get((config.model, point))
            report.add(beside_one_rank(row, config.tensor_parallel, alone.get(point), least))
            rig.end(answers)


def _pair(config: BenchConfig, own: DecodeConfig, report: Report) -> None:
    pair = DraftPair.of(config.model_config(), config.engine_config_of_two())
    rigs = (pair.kept, pair.off)
    kept, off = (ModelFloor.of(rig.model, rig.parts.layout, report.floors) for rig in rigs)
    for point in own.parsed():
        answers = _start(pair.kept, point), _start(pair.off, point)
        turns = pair.decode(answers, own.steps, own.warmup_steps)
        report.add(_row(config.model, point, [*chain(*turns.off)], off, own, {}))
        row = _row("", point, [*chain(*turns.kept)], kept, own, {})
        report.add(beside_without(row, turns, MOST_ENTRIES_OF_A_STEP))
        for rig, some in zip(rigs, answers, strict=True):
            rig.end(some)


def _drafted(config: BenchConfig, own: DecodeConfig, report: Report) -> None:
    plain: dict[str, float] = {}
    for form in config.forms:
        _drafted_form(config, own, report, form, plain)
        free_memory(config.torch_device)
    report.note(
        f"Drafts of {own.speculate} are looked for, computed, verified and folded as any are; that "
        f"they hold is scripted, at {Script.parse(own.accept, own.draft_tokens)}. Steps without "
        f"drafts, with {own.draft_tokens}, and with as many as a node finds worth their time take "
        "turns."
    )


def _drafted_form(
    config: BenchConfig,
    own: DecodeConfig,
    report: Report,
    form: StoredForm,
    plain: dict[str, float],
) -> None:
    """Measure one storage format with drafts. plain: seconds of rows in the plain format, by row
    name; missing rows are added."""
    engine = config.engine_config(form, speculate=own.speculate, draft_tokens=own.draft_tokens)
    model = config.drafting_model(engine)
    script = Script.parse(own.accept, own.draft_tokens)
    turns = DraftedTurns(model, engine, script, form.quantization)
    floor = ModelFloor.of(model, turns.rig.parts.layout, report.floors, form.quantization)
    for point in own.parsed():
        steps = own.steps + (2 * _PROFILED_STEPS if own.kernels else 0)
        transfer_id = max(point.context, turns.tokens(steps) + own.warmup_steps + point.batch)
        answers = _start(turns.rig, point, tokens=transfer_id, temperature=1.0)
        for _ in range(own.warmup_steps):
            turns.rig.step()
        gain = turns.decode(answers, own.steps)
        rows = [_row("", point, gain.turns[Turn.OFF].seconds, floor, own, {})]
        for turn in (Turn.MOST, Turn.MEASURED):
            rows.append(_drafted_row(config.model, point, own, script, gain, turn))
        for row in rows:
            report.add(form.row(row, plain.get(row.name)))
            plain.setdefault(row.name, row.seconds)
        if own.kernels:
            for row, turn in zip(rows, (Turn.OFF, Turn.MOST), strict=False):
                work = turns.in_turn(turn, lambda: work_of(turns.rig.step, _PROFILED_STEPS))
                add_kernels(report, row.name, work, _PROFILED_STEPS)
        turns.rig.end(answers)
    if config.device == "cuda":
        report.note(config.memory_note(engine, form))


def _drafted_row(
    model: str, point: Point, own: DecodeConfig, script: Script, gain: DraftGain, turn: Turn
) -> Row:
    own_times, off = gain.turns[turn], gain.turns[Turn.OFF]
    seconds, tokens = median(own_times.seconds), fmean(own_times.tokens)
    if turn is Turn.MOST:
        # The script's mean over many steps is more exact than these steps.
        times = gain.times(turn, script.tokens)
        name, extra = f"{own.draft_tokens} drafts", {"scripted": script.tokens}
        rate = point.batch * script.tokens / seconds
    else:
        times = gain.times(turn)
        name, extra = "drafts as they gain", {"drafts a step": fmean(gain.drafts)}
        # Long and short steps take turns.
        rate = point.batch * tokens / fmean(own_times.seconds)
    judged = (turn is Turn.MEASURED) is (point.batch >= MOST_DRAFTED)
    judged = judged and own.accept == ACCEPTED and own.draft_tokens == DRAFTS
    least = DRAFT_TARGETS.get((model, point)) if judged else None
    if least is None and turn is Turn.MEASURED:
        least = 1 - MOST_SLOWER_BY_DRAFTS
    return Row(
        f"step of {point.batch} x {point.context} tokens, {name}",
        seconds,
        target="" if least is None else f">= {least:g}x the tokens/s without",
        met=None if least is None else times >= least,
        others={"without": median(off.seconds)},
        extra={
            "times the tokens/s without": times,
            "tokens/s": rate,
            "tokens a step and answer": tokens,
            **extra,
        },
    )


def _add_constrained(
    report: Report, rig: Rig, point: Point, own: DecodeConfig, plain: float
) -> None:
    """Add a row for steps with grammars. plain: mean seconds of a step without grammars."""
    count = round(own.constrained * point.batch)
    answers = _start(rig, point, count)
    # The mean: short and long steps take turns.
    seconds = fmean(_steps(rig, answers, own))
    rig.end(answers)
    report.add(_beside_plain(point, f"{count} follow a grammar", seconds, plain, GRAMMAR_RATIO))


def _add_budgets(report: Report, rig: Rig, point: Point, own: DecodeConfig) -> None:
    """Add rows for steps with thinking budgets, measured in alternation with steps without budgets.
    Uses the mean, because only a few steps are longer."""
    # The first answers decode while the last ones are prefilled.
    first = own.warmup_steps + point.batch * point.context // _PROMPT_TOKENS_A_STEP
    one_by_one = [first + _STEPS_BETWEEN * number for number in range(point.batch)]
    Random(_BUDGET_SEED).shuffle(one_by_one)
    budgets: dict[str, Sequence[int]] = {
        "": (),
        "all with a thinking budget": [_FAR] * point.batch,
        f"of which one thought is closed every {_STEPS_BETWEEN} steps": one_by_one,
        f"of which each thought is closed in {own.steps} steps": [first] * point.batch,
    }
    found: dict[str, list[float]] = {what: [] for what in budgets}
    for _ in range(_BUDGET_TURNS):
        for what, tokens in budgets.items():
            answers = _start(rig, point, budgets=tokens)
            found[what] += _steps(rig, answers, own)
            rig.end(answers)
    plain = fmean(found.pop(""))
    for what, steps in found.items():
        report.add(_beside_plain(point, what, fmean(steps), plain, BUDGET_RATIO))


def _beside_plain(point: Point, what: str, seconds: float, plain: float, most: float) -> Row:
    """Return the row of a step with a feature, compared with a step without it. `what`: name of the
    feature. seconds, plain: mean seconds of a step with and without it. most: largest accepted
    ratio of the two."""
    name = f"step of {point.batch} x {point.context} tokens, {what}"
    row = Row(name, seconds, extra={"times the step without": seconds / plain})
    return row.asked((f"<= {most:g}x the step without", seconds <= most * plain))


def _start(
    rig: Rig,
    point: Point,
    constrained: int = 0,
    tokens: int | None = None,
    temperature: float = 0.0,
    budgets: Sequence[int] = (),
) -> list[Answer]:
    """Start requests and decode all of them, the first `constrained` with a grammar. The first
    requests decode while the last ones are prefilled. tokens: largest number of tokens of an
    answer; default: its prompt's length. budgets: thinking tokens allowed for each answer; empty:
    no budgets."""
    vocab = rig.model.vocab
    closing, tag = tuple(token % vocab for token in _CLOSING), _TAG % vocab
    answers = [
        rig.submit(
            rig.prompt(point.context),
            tokens or point.context,
            GRAMMAR if number < constrained else None,
            temperature,
            ThinkingBudget(budgets[number], closing, tag) if budgets else None,
        )
        for number in range(point.batch)
    ]
    rig.run_until_tokens(answers, 1)
    return answers


def _steps(rig: Rig, answers: Sequence[Answer], own: DecodeConfig) -> list[float]:
    """Run decode steps, and return the seconds of each timed step."""
    youngest = max(answers, key=lambda answer: answer.times[0])
    rig.run_until_tokens([youngest], own.warmup_steps + own.steps + 1)
    times = youngest.times[own.warmup_steps :]
    return [after - before for before, after in pairwise(times)]


def _add_idle(report: Report, rig: Rig, point: Point) -> None:
    name = f"GPU idle between steps of {point.batch} x {point.context} tokens"
    try:
        seconds = idle_between_steps(rig.step, _PROFILED_STEPS)
    except BenchError as error:
        # The driver may permit no profiler. The times above are still valid.
        report.note(f"{name}: not measured, since {error}")
        return
    asked = [(f"< {IDLE_SECONDS * 1e6:g} us", seconds < IDLE_SECONDS)]
    report.add(Row(name, seconds).asked(*asked if point.batch == IDLE_BATCH else ()))


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
    asked = []
    if limit is not None:
        asked.append((f"<= {limit * 1e3:g} ms", seconds <= limit))
    if floors is not None:
        asked.append((f"<= {floors:g}x floor", seconds <= floors * least))
    for name, peer in peers.items():
        asked.append((f">= {DECODE_PEER_RATIO:g}x {name}", peer >= DECODE_PEER_RATIO * seconds))
    row = Row(
        f"step of {point.batch} x {point.context} tokens",
        seconds,
        least,
        others=peers,
        extra={
            "tokens/s": point.batch / seconds,
            "mean ms": 1e3 * sum(steps) / len(steps),
            "p99 ms": 1e3 * sorted(steps)[int(0.99 * (len(steps) - 1))],
        },
    )
    return row.asked(*asked)
