"""Tests of a session client's questions to a node: free room before it comes, and hand-back of held
state before it leaves."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tasuki.engine import messages as m
from tasuki.proto import inference_pb2 as pb
from tasuki.server.config import ServerConfig
from tests.harness.api_keys import keys_file
from tests.harness.grpc_calls import GrpcCalls
from tests.harness.grpc_fixtures import Front, ScriptedEngine, running_front
from tests.harness.refusals import refusal

PULLED = m.PullReport(154, 4096, 0.25)
KEYS = "ann ann-has-this-key\nben ben-has-this-key\nroot root-has-this-key caller,operator\n"


class HandingBack(ScriptedEngine):
    """An engine that carries out each hand-back."""

    def _finish(self, submit: m.Submit, reason: m.FinishReason, tokens: int) -> None:
        usage = m.Usage(len(submit.prompt), 0, None, None, "p0", False, 0.1, 0.1, pulled=PULLED)
        self.deliver(m.Finished(submit.request_id, m.FinishReason.LENGTH, usage))


@pytest.fixture(params=[1, 2], ids=["alone", "workers"])
def front(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Front]:
    """Yield a front with one cache for all callers."""
    engine = HandingBack(answer=lambda submit: [])
    config = ServerConfig(api_keys=keys_file(tmp_path, KEYS), share_cache=True)
    with running_front(config=config, engine=engine, workers=request.param) as running:
        yield running


def as_(front: Front, name: str) -> GrpcCalls:
    return front.bearing(f"{name}-has-this-key")


def hand_back(calls: GrpcCalls, session: str) -> pb.SessionHandBackResponse:
    request = pb.SessionHandBackRequest(session_id=session)
    response: pb.SessionHandBackResponse = calls.sessions.HandBack(request, **calls.options)
    return response


def test_the_log_is_handed_back_as_it_stands_and_stays(front: Front) -> None:
    root = as_(front, "root")
    session = root.open(b"salt")
    root.append(session, 5, 6, 7)
    assert hand_back(root, session).pulled.tokens == 154
    (submit,) = front.engine.of(m.Submit)
    assert submit.purpose is m.Purpose.HAND_BACK and submit.prompt.tolist() == [5, 6, 7]
    assert submit.sampling.max_new_tokens == 1 and submit.cursor is not None
    assert root.append(session, 8).total_tokens == 4


def test_who_shares_the_cache_sees_nothing_of_what_was_held(front: Front) -> None:
    ann = as_(front, "ann")
    session = ann.open()
    ann.append(session, 5, 6, 7)
    assert hand_back(ann, session) == pb.SessionHandBackResponse()


def test_a_session_is_handed_back_by_its_owner_alone(front: Front) -> None:
    ann, ben = as_(front, "ann"), as_(front, "ben")
    session = ann.open()
    ann.append(session, 5)
    assert refusal(hand_back, ben, session).kind == "unknown_session"
    assert refusal(hand_back, ann, "nothing").kind == "unknown_session"
    assert refusal(hand_back, ann, 20_000 * "é").kind == "unknown_session", "however long"
    assert not front.engine.of(m.Submit)


def test_a_refusal_names_itself_and_leaves_the_session(front: Front) -> None:
    ann = as_(front, "ann")
    session = ann.open()
    assert refusal(hand_back, ann, session).kind == "invalid", "it is empty"
    ann.append(session, 5)
    front.engine.reject = m.RequestError(m.ErrorKind.NOT_HANDED_BACK, "nobody there: go on")
    refused = refusal(hand_back, ann, session)
    assert refused.typed == (grpc.StatusCode.UNAVAILABLE, "not_handed_back")
    assert "nobody there" in refused.message
    assert ann.append(session, 6).total_tokens == 2


def test_a_load_is_coarse(front: Front) -> None:
    ann = as_(front, "ann")
    load = ann.sessions.Load(pb.SessionLoadRequest(), **ann.options)
    assert (load.step_seconds, load.busy, load.free_kv) == (0.012, 3 / 16, 0.5)
    assert not load.draining
