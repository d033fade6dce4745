"""A leader notices the failures of its followers and leaves none behind."""

import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection

import pytest

from tasuki.engine.forward_plan import COLUMNS, ForwardPlan, decode_plan, plan_rows
from tasuki.engine.messages.types import Message
from tasuki.engine.parallel import messages as r
from tasuki.engine.parallel.collectives import RankTimedOut
from tasuki.engine.parallel.follower import LeaderGone, LeaderLink, _unread, follow
from tasuki.engine.parallel.leader_runner import LeaderRunner
from tasuki.engine.parallel.messages import checksum
from tasuki.engine.parallel.ranks import RankLost, RankProcess, Ranks
from tasuki.engine.parallel.shared_arenas import AgreedSteps
from tasuki.engine.runner.base import Event, SampledTokens
from tasuki.model.ops.sampling.reference import Sampled
from tests.harness.processes import ended
from tests.harness.rank_engines import rank_process
from tests.harness.waiting import HANG_SECONDS, ManualClock, until


def obey(connection: Connection) -> None:
    """Run without output until interrupted."""
    with suppress(KeyboardInterrupt):
        signal.pause()


@dataclass
class ScriptedCollectives:
    """The part of Collectives used by Ranks."""

    begun: int = 0
    abandoned: threading.Event = field(default_factory=threading.Event)

    def abandon(self) -> None:
        self.abandoned.set()


@dataclass
class Puppet:
    """A follower whose messages the test sends. process: sleeps until it is killed."""

    process: RankProcess
    theirs: socket.socket

    def say(self, *messages: Message) -> None:
        self.theirs.sendall(b"".join(map(r.frame, messages)))

    def hears(self) -> Iterator[Message]:
        reader = r.frame_reader()
        self.theirs.settimeout(HANG_SECONDS)
        while data := self.theirs.recv(1 << 16):
            for found in reader.take(data):
                yield from found


class Cast:
    def __init__(self, stack: ExitStack, count: int, timeout: float = HANG_SECONDS) -> None:
        self.puppets = []
        for _ in range(count):
            process = rank_process(obey)
            process.connection.close()
            ours, theirs = socket.socketpair()
            process.connection = ours
            stack.callback(theirs.close)
            self.puppets.append(Puppet(process, theirs))
        self.clock = ManualClock()
        self.lost: list[str] = []
        self.known = threading.Event()
        self.ranks = Ranks([puppet.process for puppet in self.puppets], timeout, self.clock)
        stack.callback(self.ranks.close)
        self.ranks.on_loss(self._note)
        self.pids = self.ranks.pids

    def _note(self, reason: str) -> None:
        self.lost.append(reason)
        self.known.set()

    def loss(self) -> str:
        """Return the reason, once every follower has ended."""
        assert self.known.wait(HANG_SECONDS)
        until(lambda: all(map(ended, self.pids)), "a follower goes on")
        with pytest.raises(RankLost) as caught:
            self.ranks.check()
        assert [str(caught.value)] == self.lost
        return self.lost[0]


@pytest.fixture
def cast() -> Iterator[Callable[..., Cast]]:
    with ExitStack() as stack:
        yield lambda count=2, **settings: Cast(stack, count, **settings)


def test_a_death_ends_all(cast: Callable[..., Cast]) -> None:
    found = cast()
    os.kill(found.pids[1], signal.SIGKILL)
    assert f"rank 2 (process {found.pids[1]}) has ended" in found.loss()


def test_last_words_are_the_reason(cast: Callable[..., Cast]) -> None:
    found = cast()
    found.puppets[0].say(r.Beat(), r.RankFailed("tensor x is missing"))
    os.kill(found.pids[0], signal.SIGKILL)
    assert "rank 1" in found.loss() and "failed: tensor x is missing" in found.lost[0]


def test_what_is_no_frame_ends_all(cast: Callable[..., Cast]) -> None:
    found = cast()
    found.puppets[0].theirs.sendall(b"\x05\x00\x00\x00hello")
    assert "sent what is no frame" in found.loss()


def test_a_rank_that_draws_other_tokens_ends_all(cast: Callable[..., Cast]) -> None:
    found = cast()
    found.ranks.sampled(4, 17)
    for puppet in found.puppets:
        puppet.say(r.PlanRun(4, 17), r.PlanRun(5, 30))
    found.ranks.sampled(5, 30)
    found.puppets[1].say(r.PlanRun(6, 8))
    until(lambda: 6 in found.ranks._checksums, "it was not read")
    assert set(found.ranks._checksums) == {6} and not found.lost
    found.ranks.sampled(6, 9)
    assert "ranks 2 and 0 drew different tokens in plan 6" in found.loss()


def test_silence_ends_all_and_beats_do_not(cast: Callable[..., Cast]) -> None:
    found = cast(timeout=1.0)
    seen = 0

    def passes(seconds: float) -> None:
        found.clock.now += seconds

    # Until it waits for plans a rank has longer.
    for puppet in found.puppets:
        puppet.say(r.Beat(), r.Loaded(8), r.Joined())
    found.ranks.joined()
    # One continues its heartbeats while time passes; the other does not.
    while not found.lost and seen < 100_000:
        found.puppets[0].say(r.Beat())
        passes(0.05)
        seen += 1
        found.known.wait(0.01)
    assert f"rank 2 (process {found.pids[1]}) has said nothing for 1 s" in found.loss()


@pytest.mark.parametrize("stands", ["before one exchange", "behind the last", "nowhere", "slow"])
def test_a_rank_that_beats_and_gets_no_further_ends_all(
    cast: Callable[..., Cast], stands: str
) -> None:
    """The leader waits in its second exchange, or has ended the plan; the other one has not."""
    found = cast(count=1, timeout=1.0)
    (puppet,) = found.puppets
    puppet.say(r.Beat(), r.Loaded(8), r.Joined())
    found.ranks.joined()
    if stands == "behind the last":
        found.ranks.ended(0)
    else:
        found.ranks.exchange_by(ScriptedCollectives(begun=2))  # type: ignore[arg-type]
    gets_on = stands in ("nowhere", "slow")
    for heartbeat in range(60 if gets_on else 100_000):
        if found.lost:
            break
        exchanges = min(heartbeat // 15, 2) if stands == "nowhere" else 1
        puppet.say(r.Beat(exchanges, 0.02 * heartbeat if stands == "slow" else 0.0))
        until(lambda: not _unread(puppet.theirs), "it was not read")
        found.clock.now += 0.05
        found.known.wait(0.01)
    if gets_on:
        assert not found.lost
    else:
        assert "rank 1" in found.loss() and "is no further in a forward for 1 s" in found.lost[0]


def test_start_and_meeting(cast: Callable[..., Cast]) -> None:
    found = cast()
    for slabs, puppet in zip((40, 30), found.puppets, strict=True):
        puppet.say(r.Beat(), r.Loaded(slabs))
    assert found.ranks.loaded() == [40, 30]
    found.ranks.join(r.Join(30))
    for puppet in found.puppets:
        assert next(puppet.hears()) == r.Join(30)
        puppet.say(r.Joined())
    found.ranks.joined()
    found.ranks.send(ForwardPlan(0).encode())
    for puppet in found.puppets:
        message = next(puppet.hears())
        assert isinstance(message, r.RunPlan) and decode_plan(message.plan).number == 0
    closing = threading.Thread(target=found.ranks.close)
    closing.start()
    for puppet in found.puppets:
        assert next(puppet.hears()) == r.EndRank()
        os.kill(puppet.process.pid, signal.SIGKILL)
    closing.join(HANG_SECONDS)
    assert not closing.is_alive() and not found.lost


def test_a_death_while_others_load_ends_the_wait(cast: Callable[..., Cast]) -> None:
    found = cast()
    found.puppets[0].say(r.Loaded(8))
    os.kill(found.pids[1], signal.SIGKILL)
    with pytest.raises(RankLost, match="rank 2"):
        found.ranks.loaded()


def test_a_follower_that_does_not_read_holds_nobody_up(cast: Callable[..., Cast]) -> None:
    """The engine's thread writes into a full socket; the heartbeat timeout ends this."""
    found = cast(count=1)

    def write() -> None:
        with pytest.raises(RankLost):
            while True:
                found.ranks.send(bytes(1 << 16))

    thread = threading.Thread(target=write)
    thread.start()
    os.kill(found.pids[0], signal.SIGKILL)
    thread.join(HANG_SECONDS)
    assert not thread.is_alive() and found.loss()


class Broken:
    """A runner with failing forwards."""

    ticks = 0

    def launch(self, plan: ForwardPlan) -> None:
        raise RuntimeError("out of memory")

    def check_device(self) -> None:
        raise AssertionError("the ranks are asked first")


def test_a_forward_that_fails_here_is_the_nodes_end(cast: Callable[..., Cast]) -> None:
    found = cast()
    runner = LeaderRunner(Broken(), found.ranks)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="out of memory"):
        runner.launch(ForwardPlan(0))
    with pytest.raises(RankLost, match="rank 0: the forward failed: out of memory"):
        runner.check_device()
    assert found.loss()


def test_checksums_tell_tokens_drafts_and_guesses_apart() -> None:
    one = SampledTokens.of([Sampled(3, -0.1, 1.0), None])
    behind = SampledTokens(one.tokens, one.logprobs, one.margins, behind={0: (Sampled(4, -1, 1),)})
    guessed = SampledTokens(one.tokens, one.logprobs, one.margins, guessed={0: (4,)})
    other = SampledTokens.of([Sampled(4, -0.1, 1.0), None])
    rounded = SampledTokens(one.tokens, one.logprobs * (1 + 1e-9), one.margins)
    assert checksum(rounded) == checksum(one)
    assert len({checksum(item) for item in (one, behind, guessed, other)}) == 4


class Launched:
    """A runner whose device has run all launched work."""

    ticks = 0

    def launch(self, plan: ForwardPlan) -> None:
        return None

    def record_event(self) -> Event:
        return lambda: True


def test_an_event_has_passed_once_every_rank_has_run_what_was_launched_before(
    cast: Callable[..., Cast],
) -> None:
    """A rank may still run the part after a forward's last collective when the leader has ended it.
    This part is a draft layer's entries, or all of a plan that only copies."""
    found = cast(2)
    runner = LeaderRunner(Launched(), found.ranks)  # type: ignore[arg-type]
    assert runner.record_event()()
    for number in range(3):
        runner.launch(ForwardPlan(number))
    event = runner.record_event()
    runner.launch(ForwardPlan(3))
    found.puppets[0].say(*(r.PlanRun(number, None) for number in range(4)))
    found.puppets[1].say(r.PlanRun(0, None), r.PlanRun(1, None))
    until(lambda: found.ranks.have_run(2), "it was not read")
    assert not event()
    found.puppets[1].say(r.PlanRun(2, None))
    until(event, "the slowest rank has run it")
    assert not runner.record_event()() and not found.ranks._checksums


def test_ranks_are_as_far_as_the_slowest_and_a_forward_ends_with_its_last() -> None:
    agreed = AgreedSteps(3)
    reports = [partial(agreed.report, rank) for rank in range(3)]
    for rank, value in ((0, 4), (2, 7), (1, 2)):
        reports[rank](value, False)
    assert agreed.steps.value == 2 and agreed.steps.end_of(2) < math.inf
    reports[0](4, True)
    reports[1](9, False)
    assert agreed.steps.value == 4 and agreed.steps.end_of(4) < math.inf
    # Late or repeated reports undo nothing.
    reports[1](3, False)
    reports[0](9, True)
    reports[2](9, True)
    assert agreed.steps.value == 9
    assert agreed.steps.end_of(5) == agreed.steps.end_of(9) >= agreed.steps.end_of(4)


class Loading:
    slabs = 5

    def check(self) -> None:
        raise AssertionError("no forward was launched")

    def join(self, slabs: int, report: object) -> None:
        raise OSError("no route")


def lives(load: Callable[[], object]) -> tuple[socket.socket, list[int]]:
    ours, theirs = socket.socketpair()
    status: list[int] = []
    thread = threading.Thread(target=lambda: status.append(follow(theirs, load, 100.0)))  # type: ignore[arg-type]
    thread.start()
    return ours, status


def said(ours: socket.socket) -> list[Message]:
    reader, found = r.frame_reader(), []
    ours.settimeout(HANG_SECONDS)
    while not any(isinstance(item, r.RankFailed | r.Loaded) for item in found):
        for messages in reader.take(ours.recv(1 << 16)):
            found += [item for item in messages if not isinstance(item, r.Beat)]
    return found


def test_a_follower_says_why_it_ends() -> None:
    def fails() -> object:
        raise OSError("the disk is gone")

    ours, status = lives(fails)
    with ours:
        assert said(ours) == [r.RankFailed("the disk is gone")]
        until(lambda: status == [1], status)
    ours, status = lives(Loading)
    with ours:
        assert said(ours) == [r.Loaded(5)]
        ours.sendall(r.frame(r.Join(5)))
        assert said(ours) == [r.RankFailed("no route")]
        until(lambda: status == [1], status)


def test_a_follower_ends_with_its_leader_and_when_it_is_asked_to() -> None:
    ours, status = lives(Loading)
    with ours:
        said(ours)
    until(lambda: status == [1], status)
    ours, status = lives(Loading)
    with ours:
        said(ours)
        ours.sendall(r.frame(r.EndRank()))
        until(lambda: status == [0], status)
    assert issubclass(LeaderGone, Exception)


class Flight:
    """A forward that ends when the test lets it."""

    idle_seconds = busy_seconds = 0.0
    has_ended = True

    def __init__(self, rows: int) -> None:
        self.lets_go = threading.Event()
        self.rows = rows

    def result(self) -> SampledTokens:
        assert self.lets_go.wait(HANG_SECONDS)
        return SampledTokens.of([Sampled(3, -0.1, 1.0)] * self.rows)


class Launching:
    """A rank with all its forwards in flight at once."""

    slabs = 5
    ticks = 0
    kept = b""

    def tiers(self, send: object) -> None:
        return

    def pictures(self) -> None:
        return

    def weights(self, send: object) -> None:
        return

    def __init__(self) -> None:
        self.flights: list[Flight] = []
        self.silent = False

    def join(self, join: r.Join, report: object) -> "Launching":
        return self

    def prepare(self) -> None:
        return

    def check(self) -> None:
        if self.silent:
            raise RankTimedOut("rank 1 waited in vain")

    def launch(self, plan: ForwardPlan) -> Flight:
        self.flights.append(Flight(len(plan.rows)))
        return self.flights[-1]


def plan_of_a_row(number: int) -> bytes:
    return ForwardPlan(number, rows=plan_rows([0] * COLUMNS)).encode()


def test_a_follower_launches_the_next_plan_while_one_runs() -> None:
    rank = Launching()
    ours, status = lives(lambda: rank)
    with ours:
        said(ours)
        ours.sendall(r.frame(r.Join(5)))
        for number in (0, 1):
            ours.sendall(r.frame(r.RunPlan(plan_of_a_row(number))))
        ours.sendall(r.frame(r.RunPlan(ForwardPlan(2).encode())))
        until(lambda: len(rank.flights) == 3, "the second waits for the first")
        rank.flights[2].lets_go.set()
        rank.flights[1].lets_go.set()
        rank.flights[0].lets_go.set()
        sampled = checksum(SampledTokens.of([Sampled(3, -0.1, 1.0)]))
        assert ran(ours, 3) == [r.PlanRun(0, sampled), r.PlanRun(1, sampled), r.PlanRun(2, None)]
        ours.sendall(r.frame(r.EndRank()))
        until(lambda: status == [0], status)


def test_what_was_drawn_in_vain_ends_the_follower() -> None:
    rank = Launching()
    ours, status = lives(lambda: rank)
    with ours:
        said(ours)
        rank.silent = True
        ours.sendall(r.frame(r.Join(5)) + r.frame(r.RunPlan(plan_of_a_row(0))))
        until(lambda: rank.flights, "nothing is launched")
        rank.flights[0].lets_go.set()
        assert ran(ours, 1) == [r.RankFailed("rank 1 waited in vain")]
        until(lambda: status == [1], status)


def ran(ours: socket.socket, count: int) -> list[Message]:
    reader, found = r.frame_reader(), []
    ours.settimeout(HANG_SECONDS)
    while len(found) < count:
        for messages in reader.take(ours.recv(1 << 16)):
            found += [item for item in messages if not isinstance(item, r.Beat | r.Joined)]
    return found


def test_a_loss_lets_the_leaders_forward_end(cast: Callable[..., Cast]) -> None:
    found = cast()
    collectives = ScriptedCollectives()
    found.ranks.exchange_by(collectives)  # type: ignore[arg-type]
    assert not collectives.abandoned.is_set()
    os.kill(found.pids[0], signal.SIGKILL)
    assert collectives.abandoned.wait(HANG_SECONDS) and found.loss()


def test_a_follower_sees_that_its_leader_ends() -> None:
    leader, follower = socket.socketpair()
    with leader, follower:
        link = LeaderLink(follower, 100.0)
        link.stop_reading()
        assert not link.leader_ends()
        leader.close()
        assert link.leader_ends()
