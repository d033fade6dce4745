"""`prediction` of a chat and of Generate over a scripted engine: what reaches the engine, what its
usage shows, what is refused."""

from dataclasses import replace

import pytest

from tasuki.engine import messages as m
from tasuki.server.openai.token_details import usage
from tasuki.server.text.text_codec import TextCodec
from tests.harness.grpc_fixtures import Front
from tests.harness.http_fixtures import HttpFront
from tests.harness.refusals import refusal

pytestmark = pytest.mark.usefixtures("each_front")
TEXT = "fine morning"


@pytest.mark.parametrize(
    "content", [TEXT, [{"type": "text", "text": "fine "}, {"type": "text", "text": "morning"}]]
)
def test_a_chats_prediction_reaches_the_engine_as_tokens(
    http: HttpFront, codec: TextCodec, content: object
) -> None:
    body = http.chat(prediction={"type": "content", "content": content}).json
    (submit,) = http.engine.of(m.Submit)
    assert submit.prediction.tolist() == codec.require_tokenizer().encode(TEXT)
    assert body["usage"]["completion_tokens"] > 0


def test_without_a_prediction_there_is_none(http: HttpFront) -> None:
    details = http.chat(prediction=None).json["usage"].get("completion_tokens_details", {})
    (submit,) = http.engine.of(m.Submit)
    assert not len(submit.prediction)
    assert "accepted_prediction_tokens" not in details


def test_usage_has_what_held_in_openais_fields() -> None:
    plain = m.Usage(3, 9, None, None, "local", False, 0.1, 0.2)
    drafted = replace(plain, accepted_prediction_tokens=5, rejected_prediction_tokens=2)
    shown = usage([plain], 9, 4, [plain, drafted, drafted], with_hit=False)
    assert shown["completion_tokens_details"] == {
        "reasoning_tokens": 4,
        "accepted_prediction_tokens": 10,
        "rejected_prediction_tokens": 4,
    }
    first = replace(plain, drafts=(m.DraftUse("mtp", (3, 1), (2, 1)),))
    uses = (m.DraftUse("mtp", (5, 4, 4), (5, 3, 0)), m.DraftUse("tree", (2,), (1,)))
    shown = usage([plain], 9, None, [first, replace(plain, drafts=uses)], with_hit=False)
    assert shown["completion_tokens_details"] == {
        "drafts": {
            "mtp": {"drafted": [8, 5, 4], "accepted": [7, 4, 0]},
            "tree": {"drafted": [2], "accepted": [1]},
        }
    }
    assert "completion_tokens_details" not in usage([plain], 9, None, [plain], with_hit=False)


def test_generate_takes_tokens(front: Front) -> None:
    list(front.calls.generate(1, 2, prediction=[3, 4, 0]))
    (submit,) = front.engine.of(m.Submit)
    assert submit.prediction.tolist() == [3, 4, 0]
    refused = front.calls.generate(1, prediction=[1] * 1_000_000)
    assert refusal(lambda: list(refused)).message.startswith("prediction has 1000000 tokens")


@pytest.mark.parametrize("outside", [-1, 1_000_000, 2**31 - 1])
def test_a_prediction_holds_tokens_of_the_model_alone(front: Front, outside: int) -> None:
    refused = front.calls.generate(1, prediction=[3, outside])
    assert refusal(lambda: list(refused)).message.startswith(f"prediction has {outside}, which is")
    assert not front.engine.of(m.Submit)
