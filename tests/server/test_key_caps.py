"""What is one key's is no other's, and one key never takes all there is."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tasuki.client.errors import ClientError, client_error
from tasuki.engine import messages as m
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.server.auth.caller import ANYBODY, CERTIFIED, OWNER, Caller, Scope
from tasuki.server.auth.concurrency_caps import ConcurrencyCaps
from tasuki.server.config import ServerConfig
from tasuki.server.errors import RequestLimit, WatcherLimit
from tasuki.server.request_ids import RequestNames
from tasuki.server.text.text_codec import TextCodec

from tests.harness.daemons import Node, flags
from tests.harness.front_fixtures import Front, ScriptedEngine, running_front
from tests.harness.http_fixtures import running_http
from tests.harness.waiting import HANG_SECONDS, until

CODEC = TextCodec(320, 4096, None, None)
PROMPT = pb.TokenIds(ids=[5, 6, 7])
KEYS = {name: f"{name}-has-this-key" for name in ("ann", "ben", "root", "smg")}
SCOPES = {"root": "operator", "smg": "caller,gateway"}
ANN, BEN = Caller("ann"), Caller("ben")
ROOT = Caller("root", frozenset({Scope.OPERATOR}))


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    lines = (f"{name} {key} {SCOPES.get(name, '')}\n" for name, key in KEYS.items())
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


class Asking:
    """One key's calls."""

    def __init__(self, channel: grpc.Channel, name: str) -> None:
        self._bearer = (("authorization", f"Bearer {KEYS[name]}"),)
        self.name = name
        self.inference = pb_grpc.InferenceStub(channel)
        self.sessions = pb_grpc.SessionStub(channel)
        self.admin = pb_grpc.CacheAdminStub(channel)

    def do(self, method: Any, request: Any, timeout: float = HANG_SECONDS) -> Any:
        """Raises ClientError."""
        try:
            return method(request, metadata=self._bearer, timeout=timeout)
        except grpc.RpcError as error:
            raise client_error(error) from error

    def generate(self, request_id: str) -> Any:
        """A stream whose headers, which tell the id, have come."""
        request = pb.GenerateRequest(request_id=request_id, token_ids=PROMPT)
        stream = self.inference.Generate(request, metadata=self._bearer, timeout=HANG_SECONDS)
        assert dict(stream.initial_metadata())["tasuki-request-id"] == request_id
        return stream

    def open(self) -> str:
        session: str = self.do(self.sessions.Open, pb.SessionOpenRequest()).session_id
        return session

    def watch(self) -> Any:
        """A stream of which something has come, or ClientError."""
        stream = self.admin.WatchEvents(
            pb.WatchEventsRequest(), metadata=self._bearer, timeout=HANG_SECONDS
        )
        try:
            next(stream)
        except grpc.RpcError as error:
            raise client_error(error) from error
        return stream


@contextmanager
def front_of(keys: str, **settings: Any) -> Iterator[tuple[Front, Callable[[str], Asking]]]:
    engine = settings.pop("engine", None)
    config = ServerConfig(api_keys=keys, **settings)
    with (
        running_front(CODEC, config, engine=engine) as front,
        grpc.insecure_channel(front.address) as channel,
    ):
        yield front, lambda name: Asking(channel, name)


def end(stream: Any) -> pb.Finished:
    *_, last = list(stream)
    finished: pb.Finished = last.finished
    return finished


def test_another_key_s_session_is_one_that_never_was(keys: str) -> None:
    with front_of(keys) as (_, asking):
        ann, ben, root = asking("ann"), asking("ben"), asking("smg")
        mine, never = ann.open(), "0" * 32
        for other in (ben, root):
            for method, kind in (
                (other.sessions.Append, pb.SessionAppendRequest),
                (other.sessions.Fork, pb.SessionForkRequest),
                (other.sessions.Close, pb.SessionCloseRequest),
            ):
                told = []
                for session in (mine, never):
                    fields = {"token_ids": PROMPT} if kind is pb.SessionAppendRequest else {}
                    with pytest.raises(ClientError) as refused:
                        other.do(method, kind(session_id=session, **fields))
                    assert refused.value.kind == "unknown_session"
                    told.append(str(refused.value).replace(session, "ID"))
                assert told[0] == told[1], "no oracle"
            with pytest.raises(ClientError) as refused:
                stream = other.sessions.Generate(
                    pb.SessionGenerateRequest(session_id=mine),
                    metadata=other._bearer,
                    timeout=HANG_SECONDS,
                )
                try:
                    list(stream)
                except grpc.RpcError as error:
                    raise client_error(error) from error
            assert refused.value.kind == "unknown_session"
        ann.do(ann.sessions.Append, pb.SessionAppendRequest(session_id=mine, token_ids=PROMPT))
        ann.do(ann.sessions.Close, pb.SessionCloseRequest(session_id=mine))


def test_one_key_never_has_all_sessions(keys: str) -> None:
    with front_of(keys, max_sessions=6) as (_, asking):
        ann, ben = asking("ann"), asking("ben")
        opened = [ann.open() for _ in range(3)]
        for attempt in (
            lambda: ann.open(),
            lambda: ann.do(ann.sessions.Fork, pb.SessionForkRequest(session_id=opened[0])),
        ):
            with pytest.raises(ClientError, match="ann has 3 sessions open") as refused:
                attempt()
            assert refused.value.kind == "session_limit"
        assert len({ben.open() for _ in range(3)}) == 3
        ann.do(ann.sessions.Close, pb.SessionCloseRequest(session_id=opened[0]))
        ann.open()


@pytest.mark.parametrize("given_cap", [None, 0, 2])
def test_the_cap_of_sessions_is_half_of_all_unless_it_is_given(given_cap: int | None) -> None:
    config = ServerConfig(max_sessions=9, sessions_per_key=given_cap)
    assert config.key_sessions == (4 if given_cap is None else given_cap)
    assert ServerConfig(max_sessions=1).key_sessions == 1


def test_a_key_over_its_cap_gives_up_its_own_idle_sessions_only(keys: str) -> None:
    idle = {"max_sessions": 4, "session_idle_seconds": 0.0}
    with front_of(keys, **idle) as (_, asking):
        ann, ben = asking("ann"), asking("ben")
        kept, opened = ben.open(), [ann.open() for _ in range(3)]
        with pytest.raises(ClientError):
            ann.do(ann.sessions.Close, pb.SessionCloseRequest(session_id=opened[0]))
        ben.do(ben.sessions.Close, pb.SessionCloseRequest(session_id=kept))


class SlowToOpen(ScriptedEngine):
    """Answers no cursor before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def _handle(self, message: m.Inbox) -> None:
        if isinstance(message, m.OpenCursor):
            assert self.let_go.wait(20)
        super()._handle(message)


@pytest.mark.parametrize(
    "cap", [{"max_sessions": 2, "sessions_per_key": 0}, {"sessions_per_key": 2}], ids=str
)
def test_a_session_that_is_being_opened_counts(keys: str, cap: dict[str, int]) -> None:
    engine = SlowToOpen()
    with front_of(keys, engine=engine, **cap) as (_, asking):
        ann = asking("ann")
        other = asking("ben") if "max_sessions" in cap else ann
        calls = [
            who.sessions.Open.future(
                pb.SessionOpenRequest(), metadata=who._bearer, timeout=HANG_SECONDS
            )
            for who in (ann, other)
        ]
        # The engine's thread stands in the first; the second waits behind it.
        engine.wait_for(m.OpenCursor)
        until(lambda: engine._inbox.qsize() == 1, "the second Open did not come")
        try:
            with pytest.raises(ClientError) as refused:
                ann.open()
            assert refused.value.kind == "session_limit"
        finally:
            engine.let_go.set()
        assert len({call.result().session_id for call in calls}) == 2


def test_two_keys_may_call_their_requests_the_same(keys: str) -> None:
    with front_of(keys) as (front, asking):
        front.engine.hold = True
        ann, ben = asking("ann"), asking("ben")
        first = ann.generate("r")
        front.engine.wait_for(m.Submit)
        second = ben.generate("r")
        submits = front.engine.wait_for(m.Submit, 2)
        assert len({submit.request_id for submit in submits}) == 2
        with pytest.raises(grpc.RpcError) as refused:
            list(
                ann.inference.Generate(
                    pb.GenerateRequest(request_id="r", token_ids=PROMPT),
                    metadata=ann._bearer,
                    timeout=HANG_SECONDS,
                )
            )
        assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
        ben.do(ben.inference.Abort, pb.AbortRequest(request_id="r"))
        assert end(second).reason == pb.FINISH_REASON_ABORT
        assert front.engine.of(m.Abort) == [m.Abort(submits[1].request_id)]
        ann.do(ann.inference.Abort, pb.AbortRequest(request_id="r"))
        assert end(first).reason == pb.FINISH_REASON_ABORT


def test_nobody_ends_another_s_request_but_an_operator(keys: str) -> None:
    with front_of(keys) as (front, asking):
        front.engine.hold = True
        ann, ben, root = asking("ann"), asking("ben"), asking("root")
        stream = ann.generate("r")
        front.engine.wait_for(m.Submit)
        assert ben.do(ben.inference.Abort, pb.AbortRequest(request_id="r")) == pb.AbortResponse()
        # Whatever would have been posted stands before what is posted now.
        root.do(root.admin.Flush, pb.FlushRequest())
        assert not front.engine.of(m.Abort)
        root.do(root.inference.Abort, pb.AbortRequest(request_id="r"))
        assert end(stream).reason == pb.FINISH_REASON_ABORT


def test_a_story_is_told_to_who_asked_and_to_operators(keys: str) -> None:
    with front_of(keys) as (_, asking):
        ann, ben, root = asking("ann"), asking("ben"), asking("root")
        assert end(ann.generate("r")).reason == pb.FINISH_REASON_STOP
        for teller in (ann, root):
            story = teller.do(teller.admin.Explain, pb.ExplainRequest(request_id="r"))
            assert story.request_id == "r" and story.WhichOneof("end") == "finished"
        told = []
        for request_id in ("r", "never"):
            with pytest.raises(ClientError) as refused:
                ben.do(ben.admin.Explain, pb.ExplainRequest(request_id=request_id))
            assert refused.value.kind == "unknown_request"
            told.append(str(refused.value).replace(repr(request_id), "ID"))
        assert told[0] == told[1], "no oracle"
        # Ben's later request of that name hides Ann's from nobody.
        end(ben.generate("r"))
        for teller, prompt in ((ann, 3), (ben, 3)):
            story = teller.do(teller.admin.Explain, pb.ExplainRequest(request_id="r"))
            assert story.finished.usage.prompt_tokens == prompt
        root.do(root.admin.Explain, pb.ExplainRequest(request_id="r~2"))


def test_a_key_has_so_many_requests_at_once(keys: str) -> None:
    with front_of(keys, requests_per_key=2, requests_per_minute=3) as (front, asking):
        front.engine.hold = True
        ann, ben = asking("ann"), asking("ben")
        streams = [ann.generate("1"), ann.generate("2")]
        front.engine.wait_for(m.Submit, 2)
        for _ in range(3):
            with pytest.raises(ClientError, match="ann has 2 requests in flight") as refused:
                try:
                    list(ann.generate("3"))
                except grpc.RpcError as error:
                    raise client_error(error) from error
            assert refused.value.kind == "request_limit"
            assert refused.value.status is grpc.StatusCode.RESOURCE_EXHAUSTED
        other = ben.generate("3")
        front.engine.wait_for(m.Submit, 3)
        streams[0].cancel()
        front.engine.wait_for(m.Abort)
        # What was refused has cost nothing of the minute.
        until(lambda: not front.client._requests._held["ann"] > 1, "not given back")
        streams.append(ann.generate("3"))
        front.engine.wait_for(m.Submit, 4)
        for stream in (*streams[1:], other):
            stream.cancel()
        until(lambda: not front.client._requests._held, "something is still held")


def test_a_gateway_s_key_stands_for_many_callers(keys: str) -> None:
    with front_of(keys, requests_per_key=1) as (front, asking):
        front.engine.hold = True
        smg = asking("smg")
        streams = [smg.generate(str(number)) for number in range(3)]
        front.engine.wait_for(m.Submit, 3)
        for stream in streams:
            stream.cancel()


def test_http_says_429_beyond_a_key_s_requests(keys: str) -> None:
    config = ServerConfig(api_keys=keys, requests_per_key=1)
    bearer = {"Authorization": f"Bearer {KEYS['ann']}"}
    with running_http(CODEC, config=config) as running:
        running.engine.hold = True
        connection = running.connect()
        body = b'{"prompt": [5], "stream": true}'
        headers = {"Content-Type": "application/json", **bearer}
        connection.request("POST", "/v1/completions", body, headers)
        running.engine.wait_for(m.Submit)
        refused = running.complete(bearer)
        assert (refused.status, refused.json["error"]["code"]) == (429, "request_limit")
        assert "Retry-After" in refused.headers
        connection.close()
        running.engine.hold = False
        until(lambda: not running.front.client._requests._held, "not given back")
        assert running.complete(bearer).status == 200


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Two operators, two streams each, and three at a time in all."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"root {KEYS['root']} operator\nann {KEYS['ann']} operator\n", encoding="utf-8")
    caps = ("--watchers-per-key", "2", "--max-watchers", "3")
    http_bind = ("--http-bind", "127.0.0.1:0")
    node = Node("serve", *flags(), "--api-keys", str(path), *caps, *http_bind).wait_ready()
    yield node
    assert node.stop() == 0


def stream_of(node: Node, path: str, name: str) -> tuple[http.client.HTTPConnection, int, bytes]:
    """The connection, on which a stream goes on; its status; a refusal's body."""
    connection = http.client.HTTPConnection(node.http_address, timeout=HANG_SECONDS)
    connection.request("GET", path, headers={"Authorization": f"Bearer {KEYS[name]}"})
    reply = connection.getresponse()
    return connection, reply.status, b"" if reply.status == 200 else reply.read()


def test_watchers_of_every_kind_count_together_a_key_and_a_node(watched: Node) -> None:
    with ExitStack() as stack, grpc.insecure_channel(watched.address) as channel:
        root, ann = Asking(channel, "root"), Asking(channel, "ann")

        def streams(path: str, name: str) -> tuple[int, bytes]:
            connection, status, body = stream_of(watched, path, name)
            stack.callback(connection.close)
            return status, body

        first = root.watch()
        assert streams("/debug/stream", "root")[0] == 200
        for path in ("/debug/stream", "/debug/events"):
            status, body = streams(path, "root")
            assert status == 429 and b"watcher_limit" in body and b"root has 2 streams" in body
        with pytest.raises(ClientError, match="root has 2 streams of events") as refused:
            root.watch()
        assert refused.value.kind == "watcher_limit"
        assert streams("/debug/events", "ann")[0] == 200
        with pytest.raises(ClientError, match="this node has 3 streams of events"):
            ann.watch()
        first.cancel()

        def comes() -> bool:
            try:
                ann.watch().cancel()
            except ClientError:
                return False
            return True

        until(comes, "what a watcher held was not given back")

    def all_gone() -> bool:
        with ExitStack() as stack:
            for name in ("root", "root", "ann"):
                connection, status, _ = stream_of(watched, "/debug/stream", name)
                stack.callback(connection.close)
                if status != 200:
                    return False
        return True

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
    """Against a model: who has what in flight, and what was remembered of the ended."""
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
