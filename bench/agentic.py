"""`tasuki bench agentic`: the time of agent sessions, each with a prompt growing turn by turn.

A turn's prompt is the previous prompt, the previous answer and new tokens. A prompt token is
eligible for a cache hit if its prefix was forwarded before: all tokens of a prompt except the new
ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tasuki.bench.measure.floors import ModelFloor
from tasuki.bench.measure.report import Row
from tasuki.bench.measure.rig import Answer, Rig
from tasuki.engine.messages.reports import HitBreakdown
from tasuki.utils.flags import parse_configs
from tasuki.utils.options import option

from .config import BenchConfig
from .errors import BenchError
from .workload import TURN_TARGETS


@dataclass(frozen=True)
class AgenticConfig:
    sessions: str = option("1,16", "at a time, by commas")
    first_turn: int = option(50_000, "prompt tokens of the first turn")
    turn: int = option(800, "new prompt tokens of every later turn")
    turns: int = option(12, "of each session")
    answer: int = option(300, "output tokens of a turn")
    short_answer: int = option(64, "output tokens before the lone turn that is timed")

    def counts(self) -> list[int]:
        return [int(text) for text in self.sessions.split(",")]


@dataclass
class Session:
    """One conversation. tokens: token ids of the prompt and the answers so far. answers: one answer
    for each turn."""

    tokens: list[int]
    answers: list[Answer] = field(default_factory=list)

    def take_turn(self, rig: Rig, new_tokens: int) -> Answer:
        """Submit the whole conversation so far as a prompt. new_tokens: the largest number of
        answer tokens."""
        answer = rig.submit(self.tokens, new_tokens)
        self.answers.append(answer)
        return answer


def main(argv: Sequence[str]) -> int:
    config, own = parse_configs(
        "tasuki bench agentic", "Time turns of agents.", argv, BenchConfig, AgenticConfig
    )
    model = config.model_config()
    report = config.reported(f"agentic {config.model}")
    engine = config.engine_config()
    rig = Rig(model, engine)
    floor = ModelFloor.of(model, rig.parts.layout, report.floors)
    _warm_up(rig, own)
    for row in _lone_rows(_lone_turn(rig, own), own, config.model, floor):
        report.add(row)
    for count in own.counts():
        rig.flush()
        for row in _rows(_play(rig, own, count), own, floor):
            report.add(row)
    if config.device == "cuda":
        report.note(config.memory_note(engine))
    return 0


def _warm_up(rig: Rig, own: AgenticConfig) -> None:
    """Run every shape of forward of a turn once, so nothing compiles or allocates during the
    measurement."""
    _play(rig, own, 1, turns=2)
    rig.flush()
    _lone_turn(rig, own)
    rig.flush()


def _lone_turn(rig: Rig, own: AgenticConfig) -> tuple[Answer, Answer]:
    """Run a turn appended to a cached prompt, then the same prompt again. Returns both answers."""
    session = Session(rig.prompt(own.first_turn))
    first = session.take_turn(rig, own.short_answer)
    rig.run()
    session.tokens += [*first.tokens, *rig.prompt(own.turn)]
    added = session.take_turn(rig, 1)
    rig.run()
    again = session.take_turn(rig, 1)
    rig.run()
    return added, again


def _lone_rows(
    answers: tuple[Answer, Answer], own: AgenticConfig, model: str, floor: ModelFloor
) -> list[Row]:
    limits = TURN_TARGETS.get(model) if own == AgenticConfig(sessions=own.sessions) else None
    names = (
        f"first token: {own.first_turn} cached, +{own.turn} new",
        "first token: the same prompt again",
    )
    rows = []
    for name, answer, limit in zip(names, answers, limits or (None, None), strict=True):
        hit, seconds = _hit(answer), answer.first_token_seconds
        reused = hit.usable_tokens
        rows.append(
            Row(
                name,
                seconds,
                floor.prefill(hit.prompt_tokens - reused, reused),
                target="" if limit is None else f"<= {limit * 1e3:g} ms",
                met=None if limit is None else seconds <= limit,
                extra={"reused": float(reused)},
            )
        )
    return rows


def _play(rig: Rig, own: AgenticConfig, count: int, turns: int | None = None) -> list[Session]:
    """Run all turns of `count` sessions; the sessions run concurrently."""
    sessions = [Session(rig.prompt(own.first_turn)) for _ in range(count)]
    for _ in range(turns or own.turns):
        answers = [session.take_turn(rig, own.answer) for session in sessions]
        rig.run()
        for session, answer in zip(sessions, answers, strict=True):
            session.tokens += [*answer.tokens, *rig.prompt(own.turn)]
    return sessions


def _rows(sessions: Sequence[Session], own: AgenticConfig, floor: ModelFloor) -> list[Row]:
    answers = [answer for session in sessions for answer in session.answers]
    later = [answer for session in sessions for answer in session.answers[1:]]
    rate = hit_rate(later)
    name = f"{len(sessions)} sessions, {own.turns} turns"
    # The mean context of the answers: a turn's own share of the session's tokens.
    context = own.first_turn + (own.turns - 1) / 2 * (own.turn + own.answer) + own.answer / 2
    return [
        _percentiles(
            f"{name}: first token of a first turn",
            [session.answers[0].first_token_seconds for session in sessions],
            None,
        ),
        _percentiles(
            f"{name}: first token of a later turn",
            [answer.first_token_seconds for answer in later],
            None,
            target=f"hit rate >= 95% ({rate:.2%})",
            met=rate >= 0.95,
        ),
        _percentiles(
            f"{name}: a token",
            [answer.token_seconds for answer in answers if len(answer.times) > 1],
            floor.decode(len(sessions), context),
        ),
    ]


def _percentiles(
    name: str,
    seconds: Sequence[float],
    floor: float | None,
    target: str = "",
    met: bool | None = None,
) -> Row:
    if not seconds:
        return Row(name, float("nan"), floor)
    ordered = sorted(seconds)
    extra = {
        f"p{share} ms": 1e3 * ordered[min(len(ordered) - 1, share * len(ordered) // 100)]
        for share in (50, 95, 99)
    }
    return Row(name, median(ordered), floor, target=target, met=met, extra=extra)


def hit_rate(answers: Sequence[Answer]) -> float:
    """Return the share of eligible (not new) prompt tokens read from the cache instead of computed
    again; 0 without any."""
    usable = eligible = 0
    for answer in answers:
        hit = _hit(answer)
        usable += hit.usable_tokens
        eligible += hit.prompt_tokens - hit.causes.get("new", 0)
    return usable / eligible if eligible else 0.0


def _hit(answer: Answer) -> HitBreakdown:
    if answer.usage is None or answer.usage.hit is None:
        raise BenchError("an answer ended without a hit breakdown")
    return answer.usage.hit
