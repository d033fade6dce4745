"""Tests of separate keys: each sees only its own sessions and requests, and no key takes all
capacity."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.engine import messages as m
from tasuki.proto import inference_pb2 as pb
from tasuki.server.auth.callers import ANYBODY, CERTIFIED, OWNER, Caller, Scope
from tasuki.server.auth.limits import ConcurrencyCaps
from tasuki.server.config import ServerConfig
from tasuki.server.errors import RequestLimit, WatcherLimit
from tasuki.server.request_records import RequestNames
from tests.harness.api_keys import headers, keys_file, metadata
from tests.harness.daemons import Node
from tests.harness.grpc_calls import GrpcCalls, ids
from tests.harness.grpc_fixtures import Front, ScriptedEngine, running_front
from tests.harness.http_calls import connect
from tests.harness.http_fixtures import running_http
from tests.harness.refusals import refusal
from tests.harness.running_nodes import HTTP, fused_node
from tests.harness.waiting import HANG_SECONDS, until

KEYS = {name: f"{name}-has-this-key" for name in ("ann", "ben", "root", "smg")}
ANN, BEN = Caller("ann"), Caller("ben")
ROOT = Caller("root", frozenset({Scope.OPERATOR}))


def lines(**scopes: str) -> str:
    """Return the lines of a key file, with each name's scopes."""
    return "".join(f"{name} {KEYS[name]} {scope}\n" for name, scope in scopes.items())


@pytest.fixture
def keys(tmp_path: Path) -> str:
    return keys_file(tmp_path, lines(ann="", ben="", root="operator", smg="caller,gateway"))


def began(calls: GrpcCalls, request_id: str) -> Any:
    """Return a stream after its headers arrived, including its id."""
    stream = calls.generate(5, 6, 7, request_id=request_id)
    assert dict(stream.initial_metadata())["tasuki-request-id"] == request_id
    return stream


def watch(calls: GrpcCalls) -> Any:
    """Return a stream of events after its first event arrived."""
    stream = calls.admin.WatchEvents(pb.WatchEventsRequest(), **calls.options)
    next(stream)
    return stream


@contextmanager
def front_of(
    keys: str, engine: ScriptedEngine | None = None, **settings: Any
) -> Iterator[tuple[Front, Callable[[str], GrpcCalls]]]:
    """Yield a front, and a function from a name to calls with its key."""
    with running_front(config=ServerConfig(api_keys=keys, **settings), engine=engine) as front:
        yield front, lambda name: front.bearing(KEYS[name])


def end(stream: Any) -> pb.Finished:
    *_, last = list(stream)
    finished: pb.Finished = last.finished
    return finished


@pytest.mark.usefixtures("each_front")
def test_another_key_s_session_is_one_that_never_was(keys: str) -> None:
    with front_of(keys) as (_, calls_of):
        ann, never = calls_of("ann"), "0" * 32
        mine = ann.open()
        for name in ("ben", "smg"):
            other = calls_of(name)
            for call in (partial(other.append, token_ids=ids(5)), other.fork, other.close):
                told = []
                for session in (mine, never):
                    refused = refusal(call, session)
                    assert refused.kind == "unknown_session"
                    told.append(refused.message.replace(session, "ID"))
                assert told[0] == told[1], "no oracle"
            assert refusal(other.turn, mine).kind == "unknown_session"
        ann.append(mine, 5, 6, 7)
        ann.close(mine)


@pytest.mark.usefixtures("each_front")
def test_one_key_never_has_all_sessions(keys: str) -> None:
    with front_of(keys, max_sessions=6) as (_, calls_of):
        ann, ben = calls_of("ann"), calls_of("ben")
        opened = [ann.open() for _ in range(3)]
        for refused in (refusal(ann.open), refusal(ann.fork, opened[0])):
            assert refused.kind == "session_limit"
            assert "ann has 3 sessions open" in refused.message
        assert len({ben.open() for _ in range(3)}) == 3
        ann.close(opened[0])
        ann.open()


@pytest.mark.parametrize("given_cap", [None, 0, 2])
def test_the_cap_of_sessions_is_half_of_all_unless_it_is_given(given_cap: int | None) -> None:
    config = ServerConfig(max_sessions=9, sessions_per_key=given_cap)
    assert config.key_sessions == (4 if given_cap is None else given_cap)
    assert ServerConfig(max_sessions=1).key_sessions == 1


@pytest.mark.usefixtures("each_front")
def test_a_key_over_its_cap_gives_up_its_own_idle_sessions_only(keys: str) -> None:
    with front_of(keys, max_sessions=4, session_idle_seconds=0.0) as (_, calls_of):
        ann, ben = calls_of("ann"), calls_of("ben")
        kept, opened = ben.open(), [ann.open() for _ in range(3)]
        assert refusal(ann.close, opened[0]).kind == "unknown_session"
        ben.close(kept)


class SlowToOpen(ScriptedEngine):
    """An engine that answers no cursor before its release."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def _handle(self, message: m.Inbox) -> None:
        if isinstance(message, m.OpenCursor):
            assert self.let_go.wait(HANG_SECONDS)
        super()._handle(message)


@pytest.mark.parametrize(
    "cap", [{"max_sessions": 2, "sessions_per_key": 0}, {"sessions_per_key": 2}], ids=str
)
@pytest.mark.usefixtures("each_front")
def test_a_session_that_is_being_opened_counts(keys: str, cap: dict[str, int]) -> None:
    engine = SlowToOpen()
    with front_of(keys, engine=engine, **cap) as (_, calls_of):
        ann = calls_of("ann")
        other = calls_of("ben") if "max_sessions" in cap else ann
        calls = [
            who.sessions.Open.future(pb.SessionOpenRequest(), **who.options) for who in (ann, other)
        ]
        # The first message blocks the engine's thread; the second waits behind it.
        engine.wait_for(m.OpenCursor)
        until(lambda: engine._inbox.qsize() == 1, "the second Open did not come")
        try:
            assert refusal(ann.open).kind == "session_limit"
        finally:
            engine.let_go.set()
        assert len({call.result().session_id for call in calls}) == 2


@pytest.mark.usefixtures("each_front")
def test_two_keys_may_call_their_requests_the_same(keys: str) -> None:
    with front_of(keys) as (front, calls_of):
        front.engine.hold = True
        ann, ben = calls_of("ann"), calls_of("ben")
        first = began(ann, "r")
        front.engine.wait_for(m.Submit)
        second = began(ben, "r")
        submits = front.engine.wait_for(m.Submit, 2)
        assert len({submit.request_id for submit in submits}) == 2
        assert refusal(ann.generate, 5, request_id="r").status is grpc.StatusCode.ALREADY_EXISTS
        ben.abort("r")
        assert end(second).reason == pb.FINISH_REASON_ABORT
        assert front.engine.of(m.Abort) == [m.Abort(submits[1].request_id)]
        ann.abort("r")
        assert end(first).reason == pb.FINISH_REASON_ABORT


@pytest.mark.usefixtures("each_front")
def test_nobody_ends_another_s_request_but_an_operator(keys: str) -> None:
    with front_of(keys) as (front, calls_of):
        front.engine.hold = True
        ann, ben, root = calls_of("ann"), calls_of("ben"), calls_of("root")
        stream = began(ann, "r")
        front.engine.wait_for(m.Submit)
        assert ben.abort("r") == pb.AbortResponse()
        # An earlier message would be in the queue before this one.
        root.admin.Flush(pb.FlushRequest(), **root.options)
        assert not front.engine.of(m.Abort)
        root.abort("r")
        assert end(stream).reason == pb.FINISH_REASON_ABORT


@pytest.mark.usefixtures("each_front")
def test_a_story_is_told_to_who_asked_and_to_operators(keys: str) -> None:
    with front_of(keys) as (_, calls_of):
        ann, ben, root = calls_of("ann"), calls_of("ben"), calls_of("root")
        assert end(began(ann, "r")).reason == pb.FINISH_REASON_STOP
        for teller in (ann, root):
            story = teller.explain("r")
            assert story.request_id == "r" and story.WhichOneof("end") == "finished"
        told = []
        for request_id in ("r", "never"):
            refused = refusal(ben.explain, request_id)
            assert refused.kind == "unknown_request"
            told.append(refused.message.replace(repr(request_id), "ID"))
        assert told[0] == told[1], "no oracle"
        # Ben's later request with this name hides Ann's from no caller.
        end(began(ben, "r"))
        for teller in (ann, ben):
            story = teller.explain("r")
            assert story.finished.usage.prompt_tokens == 3
        root.explain("r~2")


@pytest.mark.usefixtures("each_front")
def test_a_key_has_so_many_requests_at_once(keys: str) -> None:
    with front_of(keys, requests_per_key=2, requests_per_minute=3) as (front, calls_of):
        front.engine.hold = True
        ann, ben = calls_of("ann"), calls_of("ben")
        streams = [began(ann, "1"), began(ann, "2")]
        front.engine.wait_for(m.Submit, 2)
        for _ in range(3):
            refused = refusal(ann.generate, 5, request_id="3")
            assert refused.typed == (grpc.StatusCode.RESOURCE_EXHAUSTED, "request_limit")
            assert "ann has 2 requests in flight" in refused.message
        other = began(ben, "3")
        front.engine.wait_for(m.Submit, 3)
        streams[0].cancel()
        front.engine.wait_for(m.Abort)
        # A refused request has cost nothing of the minute's allowance.
        until(lambda: not front.client._requests._held["ann"] > 1, "not given back")
        streams.append(began(ann, "3"))
        front.engine.wait_for(m.Submit, 4)
        for stream in (*streams[1:], other):
            stream.cancel()
        until(lambda: not front.client._requests._held, "something is still held")


def test_a_gateway_s_key_stands_for_many_callers(keys: str) -> None:
    with front_of(keys, requests_per_key=1) as (front, calls_of):
        front.engine.hold = True
        smg = calls_of("smg")
        streams = [began(smg, str(number)) for number in range(3)]
        front.engine.wait_for(m.Submit, 3)
        for stream in streams:
            stream.cancel()


@pytest.mark.usefixtures("each_front")
def test_http_says_429_beyond_a_key_s_requests(keys: str) -> None:
    bearer = headers(KEYS["ann"])
    with running_http(config=ServerConfig(api_keys=keys, requests_per_key=1)) as running:
        running.engine.hold = True
        connection = running.begin(bearer, stream=True)
        running.engine.wait_for(m.Submit)
        refused = running.complete(bearer)
        assert refused.refusal == (429, "request_limit")
        assert "Retry-After" in refused.headers
        connection.close()
        running.engine.hold = False
        until(lambda: not running.front.client._requests._held, "not given back")
        assert running.complete(bearer).status == 200


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Yield a node with two operators: each may have two streams, and all together three."""
    keys = keys_file(tmp_path_factory.mktemp("keys"), lines(root="operator", ann="operator"))
    caps = ("--watchers-per-key", "2", "--max-watchers", "3")
    with fused_node("--api-keys", keys, *caps, *HTTP) as node:
        yield node


class OpenStreams:
    """Streams over HTTP, each on its own connection, open until a block ends."""

    def __init__(self, node: Node, stack: ExitStack) -> None:
        self._address = node.http_address
        self._stack = stack

    def begin(self, path: str, name: str) -> tuple[int, bytes]:
        """Open a stream and return the status, and the body of a refusal."""
        connection = connect(self._address)
        self._stack.callback(connection.close)
        connection.request("GET", path, headers=headers(KEYS[name]))
        reply = connection.getresponse()
        return reply.status, b"" if reply.status == 200 else reply.read()


def test_watchers_of_every_kind_count_together_a_key_and_a_node(watched: Node) -> None:
    with ExitStack() as stack, grpc.insecure_channel(watched.address) as channel:
        root, ann = (GrpcCalls(channel, metadata(KEYS[name])) for name in ("root", "ann"))
        streams = OpenStreams(watched, stack)
        first = watch(root)
        assert streams.begin("/debug/stream", "root")[0] == 200
        for path in ("/debug/stream", "/debug/events"):
            status, body = streams.begin(path, "root")
            assert status == 429 and b"watcher_limit" in body and b"root has 2 streams" in body
        refused = refusal(watch, root)
        assert refused.kind == "watcher_limit" and "root has 2 streams of events" in refused.message
        assert streams.begin("/debug/events", "ann")[0] == 200
        assert "this node has 3 streams of events" in refusal(watch, ann).message
        first.cancel()

        def comes() -> bool:
            try:
                watch(ann).cancel()
            except grpc.RpcError:
                return False
            return True

        until(comes, "what a watcher held was not given back")

    def all_gone() -> bool:
        with ExitStack() as stack:
            streams = OpenStreams(watched, stack)
            names = ("root", "root", "ann")
            return all(streams.begin("/debug/stream", name)[0] == 200 for name in names)

    until(all_gone, "streams that were left are still counted")


def test_where_one_key_is_alone_it_takes_from_nobody() -> None:
    caps = ConcurrencyCaps(RequestLimit, "requests in flight", per_key=1)
    for caller in (ANYBODY, OWNER, CERTIFIED):
        with caps.held(caller), caps.held(caller):
            pass
    with caps.held(ANN), pytest.raises(RequestLimit), caps.held(ANN):
        pass
    whole = ConcurrencyCaps(WatcherLimit, "streams of events", per_key=0, in_all=2)
    with whole.held(OWNER), whole.held(ANYBODY), pytest.raises(WatcherLimit), whole.held(OWNER):
        pass


@given(st.lists(st.tuples(st.sampled_from(["ann", "ben"]), st.booleans()), max_size=40))
def test_what_is_held_is_what_was_taken_and_not_given_back(steps: list[tuple[str, bool]]) -> None:
    caps = ConcurrencyCaps(RequestLimit, "requests in flight", per_key=3, in_all=4)
    held: dict[str, list[ExitStack]] = {"ann": [], "ben": []}
    for name, takes in steps:
        if not takes:
            if held[name]:
                held[name].pop().close()
            continue
        total = sum(map(len, held.values()))
        stack = ExitStack()
        try:
            stack.enter_context(caps.held(Caller(name)))
        except RequestLimit:
            assert len(held[name]) == 3 or total == 4
        else:
            assert len(held[name]) < 3 and total < 4
            held[name].append(stack)
    for stacks in held.values():
        for stack in stacks:
            stack.close()
    assert not caps._held


@given(
    st.lists(
        st.tuples(
            st.sampled_from([ANN, BEN, ROOT]), st.sampled_from(["x", "x~2", "y"]), st.booleans()
        ),
        max_size=60,
    )
)
def test_an_id_of_the_engine_s_is_one_caller_s(steps: list[tuple[Caller, str, bool]]) -> None:
    """Compare with a model of each caller's requests in flight and of remembered ended ones."""
    names = RequestNames(remembered=2)
    flying: dict[tuple[str, str], m.RequestId] = {}
    for caller, text, ends in steps:
        asked = m.RequestId(text)
        owned = (caller.name, text)
        assert names.is_in_flight(caller, asked) == (owned in flying)
        if ends and owned in flying:
            names.end(flying.pop(owned))
        elif not ends and owned not in flying:
            name = names.take(caller, asked)
            assert name not in flying.values()
            flying[owned] = name
        for (owner, given_id), name in flying.items():
            assert names.find(Caller(owner), given_id) == name
    for name in flying.values():
        names.end(name)
    assert len(names._owners) == len(names._names) == len(names._ended) <= 2
