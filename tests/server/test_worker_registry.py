"""Tests of state kept once per node: a front worker's calls at the registry, without processes."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.server import errors
from tasuki.server.auth.callers import Caller
from tasuki.server.auth.limits import CallerLimits, ConcurrencyCaps, RateLimits
from tasuki.server.auth.tenants import RequestContext
from tasuki.server.engine_client import EngineClient
from tasuki.server.errors import RateLimited, RequestLimit, ServerError
from tasuki.server.responses.stored_responses import ResponseStore, StoredResponse, StoredTurn
from tasuki.server.sessions import HeldSessions, SessionInput, SessionStore, Tail
from tasuki.server.workers import messages as w
from tasuki.server.workers.links import worker_frame, worker_frames
from tasuki.server.workers.messages import error_of, refused
from tasuki.server.workers.registry import Registry, WorkerSeat
from tests.harness.grpc_fixtures import TOKENS_ONLY, ScriptedObserver, usage
from tests.harness.waiting import ManualClock

ANN = Caller("ann")
OF_ANN = RequestContext(ANN)


@dataclass
class Desk:
    """A registry with an engine that answers nothing by itself but cursors."""

    requests_per_key: int = 0
    tokens_per_minute: int = 0
    posted: list[Any] = field(default_factory=list)
    observed: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = EngineClient(
            self._post,
            asyncio.get_running_loop(),
            observer=ScriptedObserver(observing=self.observed.append),
            limits=replace(
                CallerLimits.none(),
                rates=RateLimits(0, self.tokens_per_minute, ManualClock()),
                requests=ConcurrencyCaps(RequestLimit, "requests in flight", self.requests_per_key),
            ),
        )
        self.store = SessionStore(self.client, ManualClock())
        responses = ResponseStore(ManualClock(), 1 << 20, 0, 60.0)
        sessions = HeldSessions(self.store, TOKENS_ONLY)
        self.registry = Registry(self.client, lambda name: f"trace of {name}", sessions, responses)
        self._calls = 0

    def _post(self, message: Any) -> None:
        self.posted.append(message)
        if isinstance(message, m.OpenCursor):
            opened = m.CursorOpened(message.query_id, 7)
            asyncio.get_running_loop().call_soon(self.client.take, [opened])

    def worker(self, number: int) -> "ToldWorker":
        return ToldWorker(self.registry, number)

    def end(self, name: str, reason: m.FinishReason = m.FinishReason.STOP) -> None:
        self.client.take([m.Finished(m.RequestId(name), reason, usage(3, 2))])

    def ends(self) -> list[Any]:
        return [each for each in self.observed if isinstance(each, m.Finished | m.Rejected)]


class ToldWorker:
    """A worker's side of its seat. All messages cross as bytes."""

    def __init__(self, registry: Registry, number: int) -> None:
        self.told: list[Any] = []
        self._registry = registry
        self._number = number
        self._seat: WorkerSeat = registry.seat(number, self._send)
        self._seat.stood = True
        self._calls = 0

    def _send(self, messages: Any) -> None:
        (crossed,) = worker_frames().take(worker_frame(messages))
        self.told += crossed

    def tell(self, message: Any) -> None:
        ((crossed,),) = worker_frames().take(worker_frame([message]))
        self._seat.take(crossed)

    async def ask(self, make: Callable[[int], Any]) -> Any:
        self._calls += 1
        self.tell(make(self._calls))
        return await self.reply(self._calls)

    async def reply(self, call: int) -> Any:
        """Return the reply to a call. Raise the refusal, or LookupError if there is no reply
        yet."""
        for _ in range(20):
            await asyncio.sleep(0)
        found = [each for each in self.told if isinstance(each, w.Reply) and each.call == call]
        if not found:
            raise LookupError("no reply yet")
        (reply,) = found
        if isinstance(reply, w.Refused):
            raise error_of(reply)
        return reply

    async def enter(self, request_id: str, context: RequestContext = OF_ANN) -> w.Entered:
        submit = m.Submit(
            m.RequestId(request_id), np.arange(3, dtype=np.int32), SamplingParams(max_new_tokens=4)
        )
        return await self.enter_all([submit], context)

    async def enter_all(self, submits: Sequence[m.Submit], context: RequestContext) -> w.Entered:
        entered: w.Entered = await self.ask(
            lambda call: w.Enter(call, tuple(submits), context, {"new": 3})
        )
        return entered

    async def left(self) -> None:
        self._registry.left(self._number)
        await rest()


async def rest() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_end_is_told_once_the_registry_has_seen_it() -> None:
    desk = Desk()
    worker = desk.worker(1)
    entered = await worker.enter("r")
    assert (entered.names, entered.headers) == (("r",), ("trace of r",))
    assert not any(isinstance(each, m.Submit) for each in desk.posted), "the worker posts it"
    ending = w.End(2, entered.call, 0, 2)
    worker.tell(ending)
    with pytest.raises(LookupError):
        await worker.reply(2)
    desk.end("r")
    assert await worker.reply(2) == w.Done(2)
    assert desk.client.story("r", OF_ANN).end.request_id == "r"
    assert desk.registry.chat_tokens({}) == {"new": 3}


async def test_ids_in_flight_and_reserved_are_the_node_s() -> None:
    desk = Desk()
    one, other = desk.worker(1), desk.worker(2)
    entered = await one.enter("r")
    with pytest.raises(errors.DuplicateRequest):
        await other.enter("r")
    taken: w.Reserved = await other.ask(lambda call: w.Reserve(call, ANN, m.RequestId("r")))
    assert taken.request_id != "r"
    free: w.Reserved = await one.ask(lambda call: w.Reserve(call, ANN, m.RequestId("s")))
    assert free.request_id == "s"
    again: w.Reserved = await other.ask(lambda call: w.Reserve(call, ANN, m.RequestId("s")))
    assert again.request_id != "s"
    one.tell(w.Release(free.call))
    later: w.Reserved = await other.ask(lambda call: w.Reserve(call, ANN, m.RequestId("s")))
    assert later.request_id == "s"
    desk.registry.abort_asked(entered.names[0])
    asked = w.AbortAsked(entered.names[0])
    assert asked in one.told and asked not in other.told


async def test_caps_and_rates_are_the_node_s() -> None:
    desk = Desk(requests_per_key=1, tokens_per_minute=10)
    ben = RequestContext(Caller("ben"))
    one, other = desk.worker(1), desk.worker(2)
    entered = await one.enter("r")
    with pytest.raises(RequestLimit, match="ann has 1 requests in flight"):
        await other.enter("s")
    await other.enter("s", ben)
    one.tell(w.Took(entered.call, 6))
    one.tell(w.Leave(entered.call, 5, submitted=True))
    await rest()
    assert m.Abort(entered.names[0]) in desk.posted
    with pytest.raises(RateLimited) as limited:
        await other.enter("t")
    assert limited.value.retry_after > 0


def asked_call(request_id: str, answers: int, prompts: int = 1) -> list[m.Submit]:
    """Return a call with `answers` answers to each of `prompts` prompts of three tokens."""
    names = [
        [m.RequestId(f"{request_id}.{prompt}.{answer}") for answer in range(answers)]
        for prompt in range(prompts)
    ]
    return [
        m.Submit(
            first,
            np.arange(3, dtype=np.int32),
            SamplingParams(max_new_tokens=4),
            forks=tuple(m.Fork(name, seed) for seed, name in enumerate(others, 1)),
        )
        for first, *others in names
    ]


async def test_every_answer_of_a_call_is_counted_and_ends_once() -> None:
    desk = Desk(requests_per_key=4, tokens_per_minute=20)
    one, other = desk.worker(1), desk.worker(2)
    with pytest.raises(RequestLimit, match="ann asks for 6 at once and has 0"):
        await one.enter_all(asked_call("r", 3, 2), OF_ANN)
    entered = await one.enter_all(asked_call("r", 2, 2), OF_ANN)
    names = ("r.0.0", "r.0.1", "r.1.0", "r.1.1")
    assert entered.names == names
    assert entered.headers == tuple(f"trace of {name}" for name in names)
    observed = [each for each in desk.observed if isinstance(each, m.Submit)]
    assert [submit.request_id for submit in observed] == [*names]
    with pytest.raises(RequestLimit, match="ann has 4 requests in flight"):
        await other.enter("s")
    with pytest.raises(errors.DuplicateRequest):
        await other.enter_all(asked_call("r", 1), OF_ANN)
    for place, name in enumerate(names):
        desk.end(name)
        assert await one.ask(lambda call, place=place: w.End(call, entered.call, place, 3))
    assert not any(isinstance(each, m.Abort) for each in desk.posted)
    assert len(desk.ends()) == 4
    # Six tokens of prompts and twelve of answers are spent, of twenty. The cap's places are free.
    with pytest.raises(RateLimited):
        await other.enter("s")


async def test_the_end_of_one_answer_waits_for_no_other() -> None:
    desk = Desk(requests_per_key=2)
    worker = desk.worker(1)
    entered = await worker.enter_all(asked_call("r", 2), OF_ANN)
    desk.end("r.0.1")
    assert await worker.ask(lambda call: w.End(call, entered.call, 1, 0))
    with pytest.raises(RequestLimit):
        await worker.enter("s")
    worker.tell(w.Leave(entered.call, 0, submitted=True))
    await rest()
    assert [each for each in desk.posted if isinstance(each, m.Abort)] == [
        m.Abort(m.RequestId("r.0.0"))
    ]
    assert (await worker.enter("s")).names == ("s",)


async def test_end_of_one_answer_of_several_is_answered_after_the_engines_own_end() -> None:
    desk = Desk()
    worker = desk.worker(1)
    entered = await worker.enter_all(asked_call("r", 3), OF_ANN)
    asks = {place: w.End(10 + place, entered.call, place, 0) for place in range(3)}
    for place in (1, 0):
        worker.tell(asks[place])
        with pytest.raises(LookupError):
            await worker.reply(10 + place)
    desk.end("r.0.1")
    assert await worker.reply(11) == w.Done(11)
    with pytest.raises(LookupError):
        await worker.reply(10)
    desk.end("r.0.0")
    assert await worker.reply(10) == w.Done(10)
    desk.end("r.0.2")
    worker.tell(asks[2])
    assert await worker.reply(12) == w.Done(12)


async def test_cursor_whose_caller_is_cancelled_behind_its_reply_is_closed() -> None:
    posted: list[Any] = []
    client = EngineClient(posted.append, asyncio.get_running_loop())
    opening = asyncio.ensure_future(client.open_cursor(b""))
    await rest()
    # The reply comes, and its caller is cancelled before it runs again.
    client.take([m.CursorOpened(posted[0].query_id, 7)])
    opening.cancel()
    await rest()
    assert opening.cancelled()
    assert posted[1:] == [m.CloseCursor(7)]


async def test_call_that_breaks_at_the_registry_has_every_end_answered_and_holds_nothing() -> None:
    desk = Desk(requests_per_key=2)
    worker = desk.worker(1)
    entered = await worker.enter_all(asked_call("r", 2), OF_ANN)
    for unread in desk.client._unread.values():
        unread.end(TypeError("broken by the test"))
    worker.tell(w.End(10, entered.call, 0, 0))
    assert await worker.reply(10) == w.Done(10)
    assert await worker.ask(lambda call: w.End(call, entered.call, 1, 0))
    assert not desk.registry._node.owners
    for name in entered.names:
        desk.end(name, m.FinishReason.ABORT)
    assert (await worker.enter_all(asked_call("r", 2), OF_ANN)).names == entered.names


async def test_answers_that_their_worker_never_sent_are_accounted_each() -> None:
    desk = Desk()
    worker = desk.worker(1)
    entered = await worker.enter_all(asked_call("r", 2, 2), OF_ANN)
    worker.tell(w.Leave(entered.call, 0, submitted=False))
    await rest()
    assert {end.request_id for end in desk.ends()} == {*entered.names}
    assert all(isinstance(end, m.Rejected) for end in desk.ends())


async def test_a_request_that_its_worker_never_sent_is_accounted() -> None:
    desk = Desk()
    worker = desk.worker(1)
    entered = await worker.enter("r")
    worker.tell(w.Leave(entered.call, 0, submitted=False))
    await rest()
    (end,) = desk.ends()
    assert isinstance(end, m.Rejected) and end.request_id == "r"
    assert (await worker.enter("r")).names == ("r",)


@pytest.mark.parametrize("engine_first", [False, True])
async def test_what_a_dead_worker_held_is_given_back_and_accounted(engine_first: bool) -> None:
    desk = Desk(requests_per_key=3)
    worker, other = desk.worker(1), desk.worker(2)
    for request in ("sent", "ended", "never sent"):
        await worker.enter(request)
    await worker.ask(lambda call: w.Reserve(call, Caller("ben"), m.RequestId("held")))
    session = await desk.store.open(ANN, b"")
    session.log.append(np.arange(5, dtype=np.int32))
    session.tail = Tail.TOKENS
    begun = await worker.ask(lambda call: w.BeginTurn(call, ANN, None, session.id))
    assert begun.prompt.tokens.tolist() == [0, 1, 2, 3, 4] and session.busy
    desk.end("ended")

    async def gone() -> None:
        desk.registry.gone_from_engine(1, [m.RequestId("sent")])

    steps = [gone, worker.left] if engine_first else [worker.left, gone]
    for step in steps:
        await step()
    await rest()
    assert m.Abort(m.RequestId("sent")) in desk.posted
    desk.end("sent", m.FinishReason.ABORT)
    ends = {end.request_id: type(end) for end in desk.ends()}
    assert ends == {"ended": m.Finished, "sent": m.Finished, "never sent": m.Rejected}
    assert not session.busy and session.log.length == 5
    for request in ("sent", "ended", "never sent"):
        assert (await other.enter(request)).names == (request,)
    held = await other.ask(lambda call: w.Reserve(call, Caller("ben"), m.RequestId("held")))
    assert held.request_id == "held"
    assert desk.registry.chat_tokens({}) == {"new": 6}, "the dead one's count too"


async def test_a_turn_goes_on_from_any_worker_and_is_one_at_a_time() -> None:
    desk = Desk()
    one, other = desk.worker(1), desk.worker(2)
    session = await desk.store.open(ANN, b"")
    added = SessionInput(Tail.TOKENS, np.array([4, 5], dtype=np.int32), (1,))
    end = (await one.ask(lambda call: w.ReadLogEnd(call, ANN, session.id))).end
    done = await one.ask(lambda call: w.AppendToLog(call, ANN, session.id, end.tail, added))
    assert (done.appended.tokens, done.appended.total) == (2, 2)
    begun = await one.ask(lambda call: w.BeginTurn(call, ANN, None, session.id))
    assert begun.prompt.tokens.tolist() == [4, 5] and begun.prompt.marks == (1,)
    with pytest.raises(errors.SessionBusy):
        await other.ask(lambda call: w.BeginTurn(call, ANN, None, session.id))
    with pytest.raises(errors.UnknownSession):
        await other.ask(lambda call: w.ReadLogEnd(call, Caller("ben"), session.id))
    await one.ask(lambda call: w.EndTurn(call, begun.call, (8, 9)))
    begun = await other.ask(lambda call: w.BeginTurn(call, ANN, None, session.id))
    assert begun.prompt.tokens.tolist() == [4, 5, 8, 9]
    await other.ask(lambda call: w.EndTurn(call, begun.call, None))
    assert session.log.length == 4 and not session.busy


async def test_a_stored_response_is_found_by_any_worker() -> None:
    desk = Desk()
    turn = StoredTurn.of(np.arange(3, dtype=np.int32), (), b"context")
    desk.worker(1).tell(w.KeepResponse(OF_ANN, StoredResponse("resp", b"{}", turn)))
    worker = desk.worker(2)
    found = await worker.ask(lambda call: w.FindResponse(call, OF_ANN, "resp"))
    assert found.response.turn.tokens.tolist() == [0, 1, 2]
    ben = RequestContext(Caller("ben"))
    assert (await worker.ask(lambda call: w.FindResponse(call, ben, "resp"))).response is None


@pytest.mark.parametrize(
    "error",
    [
        errors.SessionBusy("busy"),
        errors.RateLimited("later", 1.5),
        errors.InvalidField("field", "is bad"),
        errors.RequestRejected(m.RequestError(m.ErrorKind.DRAINING, "draining")),
        ServerError("internal"),
    ],
)
def test_a_refusal_crosses_as_it_is(error: ServerError) -> None:
    ((crossed,),) = worker_frames().take(worker_frame([refused(3, error)]))
    back = error_of(crossed)
    assert type(back) is type(error) and str(back) == str(error) and vars(back) == vars(error)
    assert (back.status, back.kind, back.retry) == (error.status, error.kind, error.retry)
