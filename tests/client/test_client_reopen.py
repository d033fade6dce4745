"""A session outlives the node's memory of it; the same rules for both clients."""

from collections.abc import Iterator

import grpc
import pytest

from tasuki.client.aio import AsyncClient
from tasuki.client.errors import ClientError, RetryPolicy
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client, Session
from tasuki.client.session_protocol import Call, Conversation, Over, Pause, SessionLife, advance
from tasuki.engine import messages as m
from tasuki.proto import inference_pb2 as pb
from tests.harness.daemons import random_prompt
from tests.harness.grpc_fixtures import Front
from tests.harness.refusals import refused_as
from tests.harness.running_nodes import fused_node

HELLO = Prompt(messages=[{"role": "user", "content": "it was"}])
MORE = Prompt(messages=[{"role": "user", "content": "fine"}])
FAST = RetryPolicy(attempts=3, first_pause=0.001)


@pytest.fixture
def client(front: Front) -> Iterator[Client]:
    with Client(front.address, retry=FAST) as client:
        yield client


@pytest.fixture
def session(client: Client) -> Session:
    """Return an open session with the greeting in its text."""
    opened = client.open_session()
    opened.append(HELLO)
    return opened


def forget(front: Front, session_id: str) -> None:
    """Close the session at the node, as a node does after a restart or for lack of memory."""
    front.calls.close(session_id)


def last_prompt(front: Front) -> list[int]:
    return front.engine.of(m.Submit)[-1].prompt.tolist()


def test_a_forgotten_session_is_rebuilt_token_for_token(front: Front, client: Client) -> None:
    kept, lost = client.open_session(b"salt"), client.open_session(b"salt")
    for session in (kept, lost):
        session.append(HELLO)
        session.generate().result()
    forget(front, lost.id)
    known = lost.id
    assert lost.append(MORE) == kept.append(MORE)
    assert lost.id != known
    prompts = []
    for session in (kept, lost):
        session.generate().result()
        prompts.append(last_prompt(front))
    assert prompts[0] == prompts[1]
    assert {submit.salt for submit in front.engine.of(m.Submit)} == {b"salt"}


def test_a_turn_and_a_fork_reopen_too(front: Front, client: Client, session: Session) -> None:
    forget(front, session.id)
    first = session.generate().result()
    prompt = last_prompt(front)
    forget(front, session.id)
    fork = session.fork()
    forget(front, fork.id)
    fork.append(MORE)
    fork.generate().result()
    assert last_prompt(front)[: len(prompt) + 3] == [*prompt, *first.token_ids]
    assert client.stats().sessions == 2


def test_an_answer_that_nobody_read_to_its_end_is_kept(front: Front, session: Session) -> None:
    pieces = iter(session.generate())
    next(pieces)
    front.engine.wait_for(m.Submit)
    while True:
        try:
            session.append(MORE)
            break
        except ClientError as error:
            assert error.kind == "session_busy"
    session.generate().result()
    seen = last_prompt(front)
    forget(front, session.id)
    session.generate().result()
    assert last_prompt(front)[: len(seen)] == seen


def test_a_cancelled_turn_leaves_the_conversation_as_it_was(front: Front, session: Session) -> None:
    front.engine.hold = True
    stream = session.generate()
    next(iter(stream))
    prompt = last_prompt(front)
    stream.cancel()
    front.engine.hold = False
    session.generate().result()
    assert last_prompt(front) == prompt


@pytest.mark.parametrize(
    ("status", "kind", "calls"),
    [
        (grpc.StatusCode.NOT_FOUND, "unknown_session", 1),
        (grpc.StatusCode.UNAVAILABLE, None, 1),
        (grpc.StatusCode.UNAVAILABLE, "draining", 1),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "session_limit", FAST.attempts),
        (grpc.StatusCode.PERMISSION_DENIED, "permission_denied", 1),
    ],
)
def test_a_close_that_fails_for_a_moment_is_tried_again(
    status: grpc.StatusCode, kind: str | None, calls: int
) -> None:
    refusal = ClientError("no", status, kind)
    steps = SessionLife(Conversation(b""), FAST, "s").close()
    asked, outcome = 0, None
    try:
        while not isinstance(step := advance(steps, outcome), Over):
            assert isinstance(step, Call | Pause)
            asked += isinstance(step, Call)
            outcome = refusal if isinstance(step, Call) else None
    except ClientError as error:
        assert error is refusal and kind in ("session_limit", "permission_denied")
    else:
        assert kind in (None, "draining", "unknown_session")
    assert asked == calls


def test_a_close_that_is_let_in_later_is_over() -> None:
    steps = SessionLife(Conversation(b""), FAST, "s").close()
    limit = ClientError("many", grpc.StatusCode.RESOURCE_EXHAUSTED, "request_limit")
    assert isinstance(advance(steps, None), Call)
    assert isinstance(advance(steps, limit), Pause)
    assert isinstance(advance(steps, None), Call)
    assert isinstance(advance(steps, pb.SessionCloseResponse()), Over)


def test_a_session_that_its_node_has_lost_is_closed_without_complaint(
    front: Front, client: Client, session: Session
) -> None:
    forget(front, session.id)
    session.close()
    assert client.stats().sessions == 0


def test_a_closed_session_stays_closed(client: Client, session: Session) -> None:
    session.close()
    for attempt in (lambda: session.append(HELLO), lambda: session.generate().result()):
        with refused_as("unknown_session"):
            attempt()
    assert client.stats().sessions == 0


def test_attempts_end(front: Front, client: Client) -> None:
    front.engine.reject = m.RequestError(m.ErrorKind.DRAINING, "this node is draining")
    with refused_as("draining"):
        client.generate(Prompt(token_ids=[5])).result()
    assert len(front.engine.of(m.Submit)) == FAST.attempts


def test_a_client_that_was_closed_asks_nothing_again(
    front: Front, client: Client, session: Session
) -> None:
    front.engine.reject = m.RequestError(m.ErrorKind.DRAINING, "this node is draining")
    client.close()
    with pytest.raises(ClientError, match="closed"):
        session.append(HELLO)
    with pytest.raises(ClientError, match="closed"):
        client.generate(Prompt(token_ids=[5]))


def test_what_no_retry_can_mend_is_asked_once(front: Front, client: Client) -> None:
    front.engine.reject = m.RequestError(m.ErrorKind.TOO_LONG, "too long")
    with refused_as("too_long"):
        client.generate(Prompt(token_ids=[5])).result()
    assert len(front.engine.of(m.Submit)) == 1


def test_pauses_grow_and_stop_at_the_deadline() -> None:
    pauses = list(RetryPolicy(attempts=4, first_pause=1.0, longest_pause=3.0).pauses())
    assert len(pauses) == 3
    for pause, most in zip(pauses, (1.0, 2.0, 3.0), strict=True):
        assert most / 2 <= pause <= most
    assert list(RetryPolicy(first_pause=1.0, deadline=0.5).pauses()) == []


async def test_asyncio_follows_the_same_rules(front: Front) -> None:
    prompts = []
    async with AsyncClient(front.address, retry=FAST) as client:
        async with await client.open_session(b"salt") as session:
            await session.append(HELLO)
            pieces = [piece.token_ids async for piece in session.generate()]
            assert [token for tokens in pieces for token in tokens] == [7, 8, 9]
            await session.append(MORE)
            await session.generate().result()
            prompts.append(last_prompt(front))
            fork = await session.fork()
            for lost in (session, fork):
                forget(front, lost.id)
                await lost.generate().result()
                prompts.append(last_prompt(front))
            with pytest.raises(ClientError, match="vocabulary"):
                await session.append(Prompt(token_ids=[999]))
            await fork.close()
        answer = await client.generate(Prompt(token_ids=[5, 6])).result()
        assert answer.token_ids == (7, 8, 9)
    first, again, forked = prompts
    assert again == forked and again[: len(first)] == first


def test_a_session_goes_on_after_its_node_was_killed() -> None:
    ask = {"max_new_tokens": 8, "ignore_eos": True}
    patient = RetryPolicy(attempts=40, longest_pause=1.0)
    with fused_node() as node, Client(node.address, retry=patient) as client:
        session, undisturbed = client.open_session(), client.open_session()
        turns = [Prompt(token_ids=random_prompt(90, seed)) for seed in range(2)]
        expected = []
        for turn in turns:
            undisturbed.append(turn)
            expected.append(undisturbed.generate(**ask).result().token_ids)
        session.append(turns[0])
        assert session.generate(**ask).result().token_ids == expected[0]
        node.kill()
        node.start_again()
        session.append(turns[1])
        answer = session.generate(**ask).result()
    assert answer.token_ids == expected[1]
    assert answer.usage.hit is not None and answer.usage.hit.usable_tokens == 0
