"""Hand-made defects of the transfer protocol's pure core. Each is a small patch, and the simulator
finds each.

FOUND_BY names a seed for each defect. With the defect, the seed's history breaks a promise; without
it, no promise is broken. If a change of the simulation changes histories, `python -m
tests.simulation --defects` prints new seeds.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from tasuki.transfer.control.writer_life import WriterLife
from tasuki.transfer.lifecycle import actions as do
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.lifecycle.deadlines import StateDeadlines
from tasuki.transfer.lifecycle.ended_transfers import EndedTransfers
from tasuki.transfer.lifecycle.fence import Fence, FenceReason
from tasuki.transfer.lifecycle.heartbeats import Beating, Renewing
from tasuki.transfer.lifecycle.receiving import Receiving
from tasuki.transfer.lifecycle.sending import Sending
from tasuki.transfer.lifecycle.states import ReceiverEvent, ReceiverState, SenderState
from tasuki.transfer.reports import Drain
from tasuki.transfer.sending.link import WriteLeases

Made = Callable[[Any], Callable[..., Any]]
"""A function making the defective method from the original one."""


@dataclass(frozen=True)
class Defect:
    name: str
    what: str
    owner: type
    method: str
    made: Made

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        whole = self.owner.__dict__[self.method]
        with patch.object(self.owner, self.method, self.made(whole)):
            yield


DEFECTS: dict[str, Defect] = {}


def defect(owner: type, method: str, what: str) -> Callable[[Made], Made]:
    def add(made: Made) -> Made:
        name = made.__name__
        DEFECTS[name] = Defect(name, what, owner, method, made)
        return made

    return add


# The fence


@defect(Fence, "reason", "what was granted is free at once")
def dropped_fence(whole: Any) -> Any:
    return lambda self, facts, now: FenceReason.DRAIN_ACKNOWLEDGED


@defect(Fence, "reason", "a writer that is answered no more is fenced before its lease is over")
def lease_cut_short(whole: Any) -> Any:
    def reason(self: Fence, facts: Any, now: float) -> Any:
        given = whole(self, facts, now)
        return FenceReason.LEASE_EXPIRED if given is None and facts.answered is not None else given

    return reason


@defect(Fence, "acknowledge", "a forced drain is taken for a drain")
def forced_is_drained(whole: Any) -> Any:
    return lambda self, drain, now: whole(self, Drain.DRAINED, now)


@defect(WriterLife, "lose", "a lost writer's lease never ends")
def lease_without_end(whole: Any) -> Any:
    return lambda self: None


@defect(Receiving, "_look_at_fence", "nothing is severed after a lease")
def lease_without_severing(whole: Any) -> Any:
    def look(self: Any, quarantine: Any, now: float) -> Any:
        done = whole(self, quarantine, now)
        if any(isinstance(action, do.Sever) for action in done):
            self._machine.apply(ReceiverEvent.FENCED)
            return [do.TellFenced(quarantine.severing)]
        return done

    return look


@defect(Receiving, "_look_at_fence", "nothing is severed after a death")
def death_without_severing(whole: Any) -> Any:
    def look(self: Any, quarantine: Any, now: float) -> Any:
        done = whole(self, quarantine, now)
        if do.Sever(FenceReason.WRITER_DEAD) in done:
            self._machine.apply(ReceiverEvent.FENCED)
            return [do.TellFenced(FenceReason.WRITER_DEAD)]
        return done

    return look


@defect(Receiving, "_look_at_fence", "a fence that is not answered keeps its connection")
def connection_kept(whole: Any) -> Any:
    def look(self: Any, quarantine: Any, now: float) -> Any:
        return [a for a in whole(self, quarantine, now) if not isinstance(a, do.GiveUp)]

    return look


@defect(Receiving, "_ask", "nobody asks for the drain")
def drain_not_asked(whole: Any) -> Any:
    return lambda self, quarantine, now: []


@defect(Receiving, "wake", "a quarantine is never looked at")
def quarantine_not_looked_at(whole: Any) -> Any:
    return lambda self, now: 1e9 if self.is_lost else whole(self, now)


# The leases


@defect(Beating, "renewed", "a lease counts from the answer")
def lease_from_the_answer(whole: Any) -> Any:
    def renewed(self: Any, sequence: int, now: float) -> Any:
        return None if whole(self, sequence, now) is None else now + 4.0

    return renewed


@defect(Renewing, "heartbeat", "a pull's lease is granted by a beat that confirms nothing")
def lease_for_nothing(whole: Any) -> Any:
    def heartbeat(self: Any, sequence: int, received: int, now: float) -> Any:
        whole(self, sequence, received, now)
        return now + 4.0

    return heartbeat


@defect(WriteLeases, "writable", "windows leave after the lease")
def lease_ignored(whole: Any) -> Any:
    return lambda self, name: self.peer(name)


# Commits


@defect(Receiving, "_finished", "the final status commits before anything was compared")
def early_commit(whole: Any) -> Any:
    def finished(self: Any, done: Any, now: float) -> Any:
        found = whole(self, done, now)
        return [do.Prepare(done.payload)] if isinstance(found[0], do.Verify) else found

    return finished


def _without_failure(self: Any, event: Any, differs: bool) -> Any:
    is_that = isinstance(event, on.Verified) and event.failure and event.differs is differs
    return on.Verified() if is_that else event


@defect(Receiving, "_take", "a digest that differs is committed")
def digest_ignored(whole: Any) -> Any:
    return lambda self, event, now: whole(self, _without_failure(self, event, True), now)


@defect(Receiving, "_take", "windows that are missing are committed")
def missing_ignored(whole: Any) -> Any:
    return lambda self, event, now: whole(self, _without_failure(self, event, False), now)


@defect(Receiving, "_take", "the engine is told twice that all is here")
def committed_twice(whole: Any) -> Any:
    def take(self: Any, event: Any, now: float) -> Any:
        done = whole(self, event, now)
        return [*done, *(action for action in done if isinstance(action, do.Commit))]

    return take


@defect(Receiving, "_ready", "the token of another grant is told")
def stale_ready(whole: Any) -> Any:
    return lambda self, generation, told, now: whole(self, self.generation, told, now)


@defect(Receiving, "_ready", "a token is told twice")
def ready_twice(whole: Any) -> Any:
    return lambda self, generation, told, now: whole(self, generation, [*told, *told], now)


@defect(Receiving, "_lose", "a loss is not told")
def silent_loss(whole: Any) -> Any:
    return lambda self, reason, loss, now: whole(self, reason, loss, now)[1:]


@defect(Receiving, "_lose", "a loss is told twice")
def loss_told_twice(whole: Any) -> Any:
    def lose(self: Any, reason: str, loss: Any, now: float) -> Any:
        done = whole(self, reason, loss, now)
        return [*done[:1], *done]

    return lose


@defect(Receiving, "_take", "a stream that is over is still listened to")
def stream_end_ignored(whole: Any) -> Any:
    def take(self: Any, event: Any, now: float) -> Any:
        return [] if isinstance(event, on.StreamBroke) else whole(self, event, now)

    return take


@defect(Receiving, "_take_quarantined", "what landed is committed after the room was lost")
def commit_after_loss(whole: Any) -> Any:
    def take(self: Any, event: Any, quarantine: Any, now: float) -> Any:
        if isinstance(event, on.Verified) and event.failure is None:
            return [do.Commit(self._done)]
        return whole(self, event, quarantine, now)

    return take


@defect(Receiving, "_finished", "the final status of another grant is taken")
def stale_done(whole: Any) -> Any:
    return lambda self, done, now: whole(self, replace(done, generation=self.generation), now)


@defect(Receiving, "_take_quarantined", "the final status of another grant ends the fence")
def stale_done_fences(whole: Any) -> Any:
    def take(self: Any, event: Any, quarantine: Any, now: float) -> Any:
        if isinstance(event, say.Done):
            event = replace(event, generation=self.generation)
        return whole(self, event, quarantine, now)

    return take


# Names


@defect(EndedTransfers, "refusal", "a room's number and grant are used again")
def reused_id(whole: Any) -> Any:
    return lambda self, connection, transfer, generation, is_open: None


@defect(EndedTransfers, "drain", "a forced drain is remembered as a drain")
def forced_forgotten(whole: Any) -> Any:
    def drain(self: Any, connection: str, transfer_id: int, generation: int) -> Any:
        return None if whole(self, connection, transfer_id, generation) is None else Drain.DRAINED

    return drain


@defect(EndedTransfers, "knows", "a connection of an earlier life is answered for")
def stranger_answered(whole: Any) -> Any:
    return lambda self, connection: True


@defect(Sending, "_grant", "a stale grant is written to")
def stale_grant(whole: Any) -> Any:
    return lambda self, grant: whole(self, replace(grant, generation=self.generation))


@defect(Receiving, "_acknowledge", "an end of another pull ends the fence")
def stale_end(whole: Any) -> Any:
    return lambda self, ended, drain, now: self.fence.acknowledge(drain, now)


# The sender's end


@defect(Sending, "_stop", "a room that stops is over before its drain")
def lost_drain(whole: Any) -> Any:
    def stop(self: Any, failure: str | None) -> Any:
        done = whole(self, failure)
        if any(isinstance(action, do.DrainNow) for action in done):
            return self._drained(Drain.DRAINED)
        return done

    return stop


@defect(Sending, "_stalled", "a drain that never ended is told as one")
def forced_told_as_drained(whole: Any) -> Any:
    def stalled(self: Any, state: Any, allowed: float) -> Any:
        if state is SenderState.DRAINING:
            return self._drained(Drain.DRAINED)
        return whole(self, state, allowed)

    return stalled


@defect(Sending, "_end_of_bytes", "what broke is told as drained")
def broken_told_as_drained(whole: Any) -> Any:
    def end(self: Any, event: Any, now: float) -> Any:
        if isinstance(event, on.SendBroke):
            event = replace(event, drain=Drain.DRAINED)
        return whole(self, event, now)

    return end


@defect(Sending, "_say_end", "a room says its end twice")
def end_said_twice(whole: Any) -> Any:
    def end(self: Any, failure: str | None, drain: Drain) -> Any:
        done = whole(self, failure, drain)
        return [*done[:1], *done]

    return end


@defect(Sending, "_take", "a receiver that is gone is sent to")
def receiver_loss_ignored(whole: Any) -> Any:
    def take(self: Any, event: Any, now: float) -> Any:
        return [] if isinstance(event, on.ReceiverLost) else whole(self, event, now)

    return take


@defect(Sending, "is_over", "a room is over while it drains")
def over_while_it_drains(whole: Any) -> Any:
    return property(lambda self: whole.fget(self) or self.state is SenderState.DRAINING)


@defect(Sending, "_announce", "the first token is told as the final status")
def done_with_the_token(whole: Any) -> Any:
    def announce(self: Any, payload: Any, now: float) -> Any:
        done = whole(self, payload, now)
        if self.state is not SenderState.READY:
            return done
        self._machine.state = SenderState.DONE
        return [*done, do.Say(say.Done(self.generation, (), None))]

    return announce


# Deadlines


def _unbounded(*names: str) -> Any:
    def made(whole: Any) -> Any:
        return lambda self, state: inf if state.name in names else whole(self, state)

    return made


@defect(StateDeadlines, "of", "a lease is held for a receiver that never grants")
def lease_held_for_ever(whole: Any) -> Any:
    return _unbounded("ACCEPTED")(whole)


@defect(StateDeadlines, "of", "windows that never come are awaited for ever")
def windows_awaited_for_ever(whole: Any) -> Any:
    return _unbounded("GRANTED", "STREAMING", "READY")(whole)


@defect(StateDeadlines, "of", "an engine that never pins is awaited for ever")
def pin_awaited_for_ever(whole: Any) -> Any:
    return _unbounded("PINNING", "GRANTED")(whole)


@defect(Receiving, "_look", "nothing is seen that stands still")
def standstill_ignored(whole: Any) -> Any:
    def look(self: Any, event: Any, now: float) -> Any:
        return whole(self, event, now) if self.is_lost else []

    return look


@defect(Sending, "_look", "a sender never gives up")
def sender_never_gives_up(whole: Any) -> Any:
    return lambda self, look, now: []


@defect(Receiving, "_end", "what was granted is free when the room is lost")
def no_quarantine(whole: Any) -> Any:
    def end(self: Any, now: float) -> Any:
        was_granted = self.state not in (ReceiverState.RESERVED, ReceiverState.ACCEPTED)
        self._machine.state = ReceiverState.ENDED
        fenced = [do.TellFenced(FenceReason.DRAIN_ACKNOWLEDGED)] if was_granted else []
        return [do.Forget(), *fenced]

    return end


FOUND_BY = MappingProxyType(
    {
        "dropped_fence": 1,
        "lease_cut_short": 13,
        "forced_is_drained": 1,
        "lease_without_end": 2,
        "lease_without_severing": 1,
        "death_without_severing": 9,
        "connection_kept": 93,
        "drain_not_asked": 1,
        "quarantine_not_looked_at": 1,
        "lease_from_the_answer": 16,
        "lease_for_nothing": 53,
        "lease_ignored": 16,
        "early_commit": 1,
        "digest_ignored": 2,
        "missing_ignored": 4,
        "committed_twice": 1,
        "stale_ready": 458,
        "ready_twice": 1,
        "silent_loss": 1,
        "loss_told_twice": 1,
        "stream_end_ignored": 1,
        "commit_after_loss": 5,
        "stale_done": 22,
        "stale_done_fences": 314,
        "reused_id": 113,
        "forced_forgotten": 3,
        "stranger_answered": 21,
        "stale_grant": 569,
        "stale_end": 2,
        "lost_drain": 1,
        "forced_told_as_drained": 6,
        "broken_told_as_drained": 1,
        "end_said_twice": 1,
        "receiver_loss_ignored": 1,
        "over_while_it_drains": 1,
        "done_with_the_token": 1,
        "lease_held_for_ever": 243,
        "windows_awaited_for_ever": 293,
        "pin_awaited_for_ever": 293,
        "standstill_ignored": 4,
        "sender_never_gives_up": 5,
        "no_quarantine": 1,
    }
)
"""For each defect, the seed of a history finding it."""
