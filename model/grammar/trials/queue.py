"""The order of grammar trials: the next source to try, the requests waiting for it, and the
processor time of each caller.

Pure: no clock, process or socket. The server (server.py) carries the actions out. One thread.

Invariants:

- At most `most_running` trials run, and at most half of them, or one, for one caller.
- The next source is from the waiting caller with the least processor time lately. A trial's start
  and a killed trial count too.
- A source is tried once for all waiting requests (askers). Without askers a running trial is
  killed, and a waiting one is never started.
- Waiting sources are bounded in number and bytes. Beyond a bound, the caller with the most waiting
  bytes loses its newest source.
- Every asker gets one answer, unless it leaves first.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NewType

from tasuki.model.grammar.grammar import GrammarKind
from tasuki.utils.bounded_cache import BoundedCache

from .messages import Outcome, Verdict

TrialId = NewType("TrialId", int)

START_SECONDS = 0.02
"""Processor time, in seconds, charged to a caller for the start of a trial: about the time of a
fork."""
_HALF_LIFE_SECONDS = 20.0
"""Half-life, in seconds, of the processor time remembered for a caller."""
_FORGOTTEN_SECONDS = 0.001
_MOST_CALLERS_KEPT = 1024

FULL = Verdict(
    Outcome.BUSY, "too many grammars wait to be tried: ask again in a moment, or another node"
)
OVERDUE = Verdict(
    Outcome.BUSY, "this node is too busy to try the grammar: ask again, or another node"
)


@dataclass(frozen=True)
class Asker:
    """Identity of one waiting Ask. connection: the server's number of the client's connection;
    number: the client's number of the Ask."""

    connection: int
    number: int


@dataclass(frozen=True)
class Source:
    kind: GrammarKind
    text: str

    @property
    def held_bytes(self) -> int:
        """Return the approximate memory of the grammar source in bytes."""
        return 4 * len(self.text) + 100


@dataclass(frozen=True)
class Start:
    """Action for the server: fork a child process to try the source."""

    trial: TrialId
    source: Source


@dataclass(frozen=True)
class Kill:
    """Action for the server: kill the trial's child, and report its end like any other."""

    trial: TrialId


@dataclass(frozen=True)
class Answer:
    asker: Asker
    verdict: Verdict


Action = Start | Kill | Answer


@dataclass(frozen=True)
class QueueBounds:
    """Bounds of the trial queue. most_running: number of trials running together. most_waiting:
    number of waiting sources of all callers. most_waiting_bytes: memory of these sources. patience:
    seconds before a running trial times out. kept_bytes: memory of remembered verdicts."""

    most_running: int
    most_waiting: int = 256
    most_waiting_bytes: int = 32 << 20
    patience: float = 30.0
    kept_bytes: int = 8 << 20

    @property
    def most_of_a_caller(self) -> int:
        """Return the largest number of trials running simultaneously for one caller."""
        return max(1, self.most_running // 2)


@dataclass
class _Wanted:
    """The requests waiting for the verdict of one source, with the caller's name of each."""

    askers: dict[Asker, str] = field(default_factory=dict)


@dataclass
class _Running:
    source: Source
    caller: str
    since: float
    wanted: _Wanted
    verdict: Verdict | None = None
    """Verdict to send to the askers if the queue had the trial killed; else None."""


class _Use:
    """Processor seconds used lately by each caller's trials."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[float, float]] = {}

    def of(self, caller: str, now: float) -> float:
        seconds, at = self._used.get(caller, (0.0, now))
        return float(seconds * 0.5 ** ((now - at) / _HALF_LIFE_SECONDS))

    def add(self, caller: str, seconds: float, now: float) -> None:
        self._used[caller] = (self.of(caller, now) + seconds, now)
        if len(self._used) > _MOST_CALLERS_KEPT:
            kept = {name: self.of(name, now) for name in self._used}
            self._used = {
                name: (used, now) for name, used in kept.items() if used > _FORGOTTEN_SECONDS
            }


class TrialQueue:
    """The queue of grammar trials. now: seconds of one monotonic clock, in every call."""

    def __init__(self, bounds: QueueBounds) -> None:
        self._bounds = bounds
        self._verdicts: BoundedCache[Source, Verdict] = BoundedCache(bounds.kept_bytes)
        self._waiting: dict[Source, _Wanted] = {}
        self._lines: dict[str, dict[Source, None]] = {}
        """Waiting sources by caller, each caller's oldest first. A caller without waiting sources
        has no entry."""
        self._running: dict[TrialId, _Running] = {}
        self._use = _Use()
        self._next_id = 0

    @property
    def is_idle(self) -> bool:
        """Return true if no trial is waiting or running."""
        return not self._waiting and not self._running

    @property
    def running(self) -> int:
        """Return the number of running trials, including those being killed."""
        return len(self._running)

    def ask(self, asker: Asker, caller: str, source: Source, now: float) -> list[Action]:
        """Add one request for a trial. Return the actions for the server: an immediate answer
        (remembered, or FULL), starts, or none yet. A request displaced by this one is answered too.
        REQUIRES: the asker is new."""
        known = self._verdicts.get(source)
        if known is not None:
            return [Answer(asker, known)]
        for running in self._running.values():
            if running.source == source and running.verdict is None and running.wanted.askers:
                running.wanted.askers[asker] = caller
                return []
        actions = self._room_for(caller, source)
        if actions is None:
            return [Answer(asker, FULL)]
        self._waiting.setdefault(source, _Wanted()).askers[asker] = caller
        self._lines.setdefault(caller, {})[source] = None
        return [*actions, *self._started(now)]

    def leave(self, asker: Asker, now: float) -> list[Action]:
        """Forget a client's request for a trial, and return the actions for the server. Do nothing
        if the request has been answered. A running trial is killed if nobody else waits for it."""
        for trial, running in self._running.items():
            if running.wanted.askers.pop(asker, None) is not None:
                return [] if running.wanted.askers else [Kill(trial)]
        for source, wanted in self._waiting.items():
            caller = wanted.askers.pop(asker, None)
            if caller is not None:
                if caller not in wanted.askers.values():
                    self._drop(caller, source)
                break
        return self._started(now)

    def leave_all(self, connection: int, now: float) -> list[Action]:
        """Forget all requests of a closed connection. Return the actions for the server."""
        wanted = [running.wanted for running in self._running.values()]
        wanted += self._waiting.values()
        gone = [asker for one in wanted for asker in one.askers if asker.connection == connection]
        return [action for asker in gone for action in self.leave(asker, now)]

    def ended(
        self, trial: TrialId, verdict: Verdict, cpu_seconds: float, now: float
    ) -> list[Action]:
        """Record the end of a trial's child process, normal or killed. Return the answers to its
        askers and the next starts. A final verdict with askers is remembered. cpu_seconds:
        processor time of the child."""
        running = self._running.pop(trial)
        self._use.add(running.caller, cpu_seconds, now)
        found = verdict if running.verdict is None else running.verdict
        if found.is_final and running.wanted.askers:
            size = running.source.held_bytes + len(found.reason)
            self._verdicts.put(running.source, found, size)
        answers = [Answer(asker, found) for asker in running.wanted.askers]
        return [*answers, *self._started(now)]

    def overdue(self, now: float) -> list[Action]:
        """Give up trials running for longer than `patience`. Return the actions to kill them."""
        late = [
            (trial, running)
            for trial, running in self._running.items()
            if running.verdict is None and now - running.since > self._bounds.patience
        ]
        for _, running in late:
            running.verdict = OVERDUE
        return [Kill(trial) for trial, _ in late]

    def _started(self, now: float) -> list[Action]:
        """Move waiting sources to running, within the bounds. Return the actions to start them."""
        starts: list[Action] = []
        while len(self._running) < self._bounds.most_running:
            caller = self._next_caller(now)
            if caller is None:
                break
            source = next(iter(self._lines[caller]))
            wanted = self._waiting.pop(source)
            for other in {*wanted.askers.values()}:
                self._remove_from_line(other, source)
            trial = TrialId(self._next_id)
            self._next_id += 1
            self._running[trial] = _Running(source, caller, now, wanted)
            self._use.add(caller, START_SECONDS, now)
            starts.append(Start(trial, source))
        return starts

    def _next_caller(self, now: float) -> str | None:
        """Return the caller whose source is tried next: the one with the least processor time
        lately. Return None if no caller may start a trial."""
        taken = Counter(running.caller for running in self._running.values())
        free = [caller for caller in self._lines if taken[caller] < self._bounds.most_of_a_caller]
        return min(free, key=lambda caller: self._use.of(caller, now), default=None)

    def _room_for(self, caller: str, source: Source) -> list[Action] | None:
        """Free space for one more waiting source of the caller. Return answers for the requests
        removed for it. Return None if no other caller would have more waiting bytes than this
        one."""
        answers: list[Action] = []
        if source in self._waiting:
            return answers
        while self._is_full(source):
            held = {name: self._line_bytes(name) for name in self._lines}
            longest = max(held, key=lambda name: held[name], default=caller)
            if longest == caller or held[longest] <= held.get(caller, 0) + source.held_bytes:
                return None
            displaced = next(reversed(self._lines[longest]))
            wanted = self._waiting[displaced]
            gone = [asker for asker, name in wanted.askers.items() if name == longest]
            for asker in gone:
                del wanted.askers[asker]
            answers += [Answer(asker, FULL) for asker in gone]
            self._drop(longest, displaced)
        return answers

    def _is_full(self, source: Source) -> bool:
        held = sum(waiting.held_bytes for waiting in self._waiting) + source.held_bytes
        return (
            len(self._waiting) >= self._bounds.most_waiting
            or held > self._bounds.most_waiting_bytes
        )

    def _line_bytes(self, caller: str) -> int:
        return sum(source.held_bytes for source in self._lines[caller])

    def _drop(self, caller: str, source: Source) -> None:
        """Remove the source from the caller's waiting sources. Remove it from the queue if no
        request waits for it."""
        self._remove_from_line(caller, source)
        if not self._waiting[source].askers:
            del self._waiting[source]

    def _remove_from_line(self, caller: str, source: Source) -> None:
        line = self._lines.get(caller, {})
        line.pop(source, None)
        if not line:
            self._lines.pop(caller, None)
