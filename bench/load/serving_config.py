"""Flags of `tasuki bench serving`, and the load described by the flags."""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path

from tasuki.bench.load.client.loads import Agents, Endless, GrowingSessions, Load, Streams
from tasuki.bench.load.client.replies import alike, recorded_replies
from tasuki.bench.load.client.session_shape import SessionShape
from tasuki.bench.measure.results import OUT
from tasuki.bench.measure.scripted_drafts import Script
from tasuki.model.families.registry import published_names
from tasuki.model.quantise.format_names import SERVED_ON_GPUS
from tasuki.utils.options import option

_ENDLESS_ANSWER = 200_000
_GROWTH = 10_000
"""Number of tokens an endless answer is assumed to have at the window's end."""
_LIVES = 4
"""Number of growing sessions, one after another, in a cost-free model's arena."""
GOLDEN = ".93/.86/.825"
"""Acceptance of drafts with 1.93, 2.73 and 3.39 tokens a step for one, two and three drafts."""


class Kind(Enum):
    STREAMS = "streams"
    ENDLESS = "endless streams"
    AGENTS = "agents"
    PAIR = "agents of a pair"

    @property
    def layers(self) -> int:
        """Return the cost-free model's number of layers. With a prefill and a decode node it has
        more layers, because transfers are sent layer by layer."""
        return 32 if self is Kind.PAIR else 4

    @property
    def has_agents(self) -> bool:
        return self in (Kind.AGENTS, Kind.PAIR)


@dataclass(frozen=True)
class ServingConfig:
    free_model: bool = option(
        False, "a model that costs nothing and whose answers are known, on the CPU"
    )
    model: str = option(
        "9b", "without the free model: a published shape or a config's folder, weights drawn"
    )
    quantization: str = option("", "format of drawn weights; none: plain", ("", *SERVED_ON_GPUS))
    protocol: str = option("http", "of the clients", ("http", "grpc"))
    pair: bool = option(False, "a prefill and a decode node, and sessions of agents")
    agents: bool = option(False, "sessions of agents on one node, to hold a pair against")
    endless: bool = option(False, "streams that never end, of short and of long prompts; a verdict")
    streams: int = option(256, "at a time; not of agents")
    prompt: int = option(512, "tokens of a stream's prompt")
    answer: int = option(512, "tokens of a stream's answer, after which it asks again")
    short: int = option(100, "prompt tokens of every other endless stream")
    long: int = option(10_000, "prompt tokens of the other ones")
    seconds: float | None = option(
        None, "the window, from when all streams are admitted; not given: 10, endless or grown 60"
    )
    sessions: int = option(128, "agents at a time")
    turns: int = option(6, "of each agent")
    prefix: int = option(6_000, "prompt tokens that all agents have in common")
    turn_tokens: int = option(700, "new prompt tokens of a turn")
    turn_answer: int = option(150, "tokens of a turn's answer")
    warm: int = option(3, "how often the common prefix is asked for before; 0: cold")
    input: int = option(0, "mean tokens of a prompt in growing sessions of agents; 0: no growth")
    output: int = option(400, "mean tokens of an answer, with --input")
    reuse: float = option(0.9, "share of prompt tokens known from earlier turns, with --input")
    replies: str = option("", "trace file with the answers' lengths and pauses, with --input")
    faster: float = option(1.0, "divisor of the trace's pauses between turns")
    drafts: int = option(0, "draft tokens of a step, with scripted acceptance; 0: none")
    accept: str = option(
        "", f"acceptance rate of each draft after the earlier ones; not given: {GOLDEN}"
    )
    gpus: int | None = option(None, "of all nodes, for tokens per GPU; not given: one per node")
    step_ms: float = option(0.0, "that a forward of the free model takes; 0: none takes any time")
    row_us: float = option(55.0, "more for each sequence that decodes, where step_ms is given")
    token_us: float = option(24.0, "more for each prompt token, where step_ms is given")
    clients: int = option(2, "client processes")
    patience: float = option(60.0, "seconds without a byte until a request counts as unanswered")
    max_seconds: float = option(600.0, "for all sessions to be admitted, and for all to end")
    node_flags: str = option("", "more flags of every node, as '--front-workers 3'")
    prefill_flags: str = option("", "more flags of the prefill node")
    seed: str = option("1", "of the prompts")
    json: bool = option(False, "one JSON object on stdout, and nothing else")
    out: str = option("", OUT)
    commit: str = option("", "of the source, where it is no git tree")

    def __post_init__(self) -> None:
        if self.pair + self.agents + self.endless > 1:
            raise ValueError("pair, agents and endless exclude each other: give one of them")
        is_known = self.model in published_names() or Path(self.model).is_dir()
        if not self.free_model and not is_known:
            known = ", ".join(published_names())
            raise ValueError(f"model {self.model!r} is unknown: use a folder or one of {known}")
        for name in ("streams", "prompt", "answer", "sessions", "turns", "clients", "output"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.free_model and self.quantization:
            raise ValueError("the free model has no weights: leave out --quantization")
        if self.grows:
            self._check_growing()
        elif self.replies:
            raise ValueError("replies are of growing sessions: give --input TOKENS as well")
        if self.drafts:
            self._check_drafts()
        elif self.accept:
            raise ValueError("accept is of drafts: give --drafts N as well")

    def _check_growing(self) -> None:
        if not self.kind.has_agents:
            raise ValueError("input is of agents: give --agents or --pair as well")
        if self.faster <= 0:
            raise ValueError(f"faster must be above 0, not {self.faster:g}")
        SessionShape.of(self.input, self.output, self.reuse)

    def _check_drafts(self) -> None:
        if self.free_model:
            raise ValueError("the free model verifies no drafts: leave out --drafts")
        if self.drafts < 0:
            raise ValueError(f"drafts must be at least 0, not {self.drafts}")
        Script.parse(self.scripted, self.drafts)

    @property
    def grows(self) -> bool:
        """Return True if sessions have prompts of a mean length."""
        return self.input != 0

    @property
    def scripted(self) -> str:
        """Return the acceptance rates of drafts, as in `Script`; empty without drafts."""
        return (self.accept or GOLDEN) if self.drafts else ""

    @property
    def kind(self) -> Kind:
        if self.pair:
            return Kind.PAIR
        if self.agents:
            return Kind.AGENTS
        return Kind.ENDLESS if self.endless else Kind.STREAMS

    @property
    def case(self) -> str:
        model = "free model" if self.free_model else f"{self.model} shapes"
        grown = f" of {self.input}/{self.output} tokens" if self.grows else ""
        return f"{self.load.sessions} {self.kind.value}{grown}, {self.protocol}, {model}"

    @cached_property
    def load(self) -> Load:
        """Return the load. Raises ReplayError for a file without replies."""
        match self.kind:
            case Kind.AGENTS | Kind.PAIR:
                return self._growing_load if self.grows else self.agents_load
            case Kind.ENDLESS:
                return Endless(self.streams, self.short, self.long, _ENDLESS_ANSWER, self.seed)
            case Kind.STREAMS:
                return Streams(self.streams, self.prompt, self.answer, self.seed)

    @property
    def agents_load(self) -> Agents:
        return Agents(
            self.sessions, self.turns, self.prefix, self.turn_tokens, self.turn_answer, self.seed
        )

    @property
    def _growing_load(self) -> GrowingSessions:
        shape = SessionShape.of(self.input, self.output, self.reuse)
        replies = alike(self.output)
        if self.replies:
            replies = recorded_replies(Path(self.replies), self.output, self.faster)
        return GrowingSessions(self.sessions, shape, replies, self.seed)

    @property
    def nodes(self) -> int:
        return 2 if self.pair else 1

    @property
    def window_seconds(self) -> float:
        return self.seconds or (60.0 if self.kind is Kind.ENDLESS or self.grows else 10.0)

    @property
    def tokens_held(self) -> int:
        """Return the largest number of tokens held in the cache by all sessions together."""
        if self.grows:
            shape = SessionShape.of(self.input, self.output, self.reuse)
            return _LIVES * self.sessions * shape.longest
        if self.kind.has_agents:
            grown = self.turns * (self.turn_tokens + self.turn_answer)
            return self.prefix + (self.sessions + self.warm) * grown
        if self.kind is Kind.ENDLESS:
            return self.streams * (self.long + self.short) // 2 + self.streams * _GROWTH
        return 2 * self.streams * (self.prompt + self.answer)
