"""Tests of a caller's token ids that stand for pictures: refused by place at every door.

Ids sampled by the model stay text, and so do placeholders' names in texts.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library

from tasuki.engine import messages as m
from tasuki.model.config_json import ModelConfigError
from tasuki.model.vision.config import placeholder_ids
from tasuki.proto import inference_pb2 as pb
from tasuki.server.errors import PictureMissing
from tasuki.server.request_checks import check_prompt_ids, to_tokens
from tasuki.server.text.text_codec import TextCodec
from tests.harness.grpc_calls import ids
from tests.harness.grpc_fixtures import write_tokenizer
from tests.harness.http_fixtures import HttpFront, running_http
from tests.harness.refusals import INVALID, refusal

NAMES = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
VOCABULARY = 400


@dataclass(frozen=True)
class Placeholders:
    """image, video: ids of the checkpoint's placeholders."""

    codec: TextCodec
    image: int
    video: int


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Placeholders:
    """Return the codec of a checkpoint with placeholders, loaded from its files."""
    folder = tmp_path_factory.mktemp("with_pictures")
    write_tokenizer(folder)
    library = Library.from_file(str(folder / "tokenizer.json"))
    library.add_special_tokens([*NAMES])
    library.save(str(folder / "tokenizer.json"))
    image, video = (library.token_to_id(name) for name in NAMES[2:])
    outer = {"image_token_id": image, "video_token_id": video}
    (folder / "config.json").write_text(json.dumps(outer))
    return Placeholders(TextCodec.load(folder, VOCABULARY, 4096), image, video)


@pytest.fixture(scope="module")
def front(shown: Placeholders) -> Iterator[HttpFront]:
    with running_http(shown.codec) as running:
        yield running


def in_session(front: HttpFront, **fields: object) -> Callable[[], object]:
    calls = front.front.calls
    return lambda: calls.append(calls.open(), **fields)


@pytest.mark.parametrize("kind", ["image", "video"])
def test_grpc_names_the_place_of_a_placeholder(
    front: HttpFront, shown: Placeholders, kind: str
) -> None:
    token = getattr(shown, kind)
    before = len(front.engine.of(m.Submit))
    doors = {
        "token_ids": [
            lambda: list(front.front.calls.generate(5, 6, token)),
            in_session(front, token_ids=ids(5, 6, token)),
        ],
        "answer": [in_session(front, answer=ids(5, 6, token, token))],
    }
    for field, calls in doors.items():
        for call in calls:
            refused = refusal(call)
            assert refused.typed == (INVALID, "picture_missing")
            assert refused.message.startswith(f"{field}[2] is {token}, ")
            assert "send the picture itself" in refused.message
            assert refused.trailing["tasuki-retry"] == "never"
    assert len(front.engine.of(m.Submit)) == before


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_http_names_the_place_of_a_placeholder(
    front: HttpFront, shown: Placeholders, path: str
) -> None:
    before = len(front.engine.of(m.Submit))
    prompts: dict[str, list[object]] = {
        "prompt[1]": [5, shown.image],
        "prompt[0]": [float(shown.video), 7],
    }
    if path == "/v1/completions":
        prompts["prompt[1][2]"] = [[5], [5, 6, shown.image]]
    for place, prompt in prompts.items():
        reply = front.post(path, {"prompt": prompt})
        assert reply.refusal == (400, "picture_missing")
        assert reply.error["param"] == place
        assert "send the picture itself" in reply.error["message"]
    assert len(front.engine.of(m.Submit)) == before


def test_other_ids_pass(front: HttpFront, shown: Placeholders) -> None:
    others = [token for token in range(VOCABULARY) if token not in (shown.image, shown.video)]
    assert front.post("/v1/completions", {"prompt": others}).status == 200
    assert front.engine.of(m.Submit)[-1].prompt.tolist() == others


def test_a_placeholder_s_name_in_a_text_stays_text(front: HttpFront, shown: Placeholders) -> None:
    text = f"see {''.join(NAMES)} there"
    messages = [{"role": "user", "content": text}]
    asked = [
        ("/v1/completions", {"prompt": text}),
        ("/v1/chat/completions", {"messages": messages}),
        ("/v1/messages", {"messages": messages, "max_tokens": 5}),
        ("/v1/responses", {"input": text}),
    ]
    before = len(front.engine.of(m.Submit))
    for path, body in asked:
        assert front.post(path, body).status == 200
    prompts = [submit.prompt.tolist() for submit in front.engine.of(m.Submit)[before:]]
    assert len(prompts) == len(asked)
    for prompt in prompts:
        assert not {shown.image, shown.video}.intersection(prompt)
    plain = shown.codec.require_tokenizer().encode(text)
    assert all(plain == prompt[-len(plain) :] for prompt in prompts[:1])


def test_a_sampled_placeholder_stays_text(front: HttpFront, shown: Placeholders) -> None:
    calls = front.front.calls
    session = calls.open()
    calls.append(session, 5, 6)
    front.engine.answer = lambda submit: [shown.image, 9]
    list(calls.turn(session, sampling=pb.Sampling(max_new_tokens=2, ignore_eos=True)))
    calls.append(session, 7)
    list(calls.turn(session))
    assert front.engine.of(m.Submit)[-1].prompt.tolist() == [5, 6, shown.image, 9, 7]


def test_a_sampled_placeholder_of_a_stored_response_stays_text(
    front: HttpFront, shown: Placeholders
) -> None:
    front.engine.answer = lambda submit: [shown.video, 9]
    first = front.post("/v1/responses", {"input": "it was"}).json
    assert first["status"] in ("completed", "incomplete")
    body = {"input": "a fine morning", "previous_response_id": first["id"]}
    assert front.post("/v1/responses", body).status == 200
    assert shown.video in front.engine.of(m.Submit)[-1].prompt


@pytest.mark.parametrize(
    ("outer", "found"),
    [
        ({"image_token_id": 262, "video_token_id": 263, "vision_config": {}}, {262, 263}),
        ({"image_token_id": 262, "video_token_id": None}, {262}),
        ({"text_config": {"image_token_id": 262}}, set()),
        ({}, set()),
    ],
)
def test_placeholders_are_read_from_the_outer_config(
    outer: dict[str, object], found: set[int], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(outer))
    assert placeholder_ids(tmp_path) == found


@pytest.mark.parametrize("garbled", ["262", -1, 2.5, True, [262]])
def test_a_garbled_placeholder_is_refused_by_its_field(garbled: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"image_token_id": garbled}))
    with pytest.raises(ModelConfigError, match="image_token_id"):
        placeholder_ids(tmp_path)


def test_the_first_of_many_placeholders_is_named() -> None:
    prompt = to_tokens("prompt", [1] * 50_000 + [8, 7] * 1000)
    with pytest.raises(PictureMissing, match=r"prompt\[50000\] is 8"):
        check_prompt_ids("prompt", prompt, 10, frozenset({7, 8}))
