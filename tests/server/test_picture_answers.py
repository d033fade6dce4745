"""Tests of answers to pictures over HTTP: golden answers, hits, refusals."""

import io
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from tests.harness.daemons import Node, flags
from tests.harness.http_calls import Reply, ask
from tests.harness.picture_answers import (
    CASES,
    FOLDER,
    IMAGE,
    START,
    cached,
    chat,
    messages_of,
    part_of,
)
from tests.harness.picture_files import data_url, picture_file, png_of
from tests.harness.picture_goldens import needs_goldens
from tests.harness.running_nodes import HTTP, running

pytestmark = needs_goldens


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running(Node("serve", *flags(FOLDER, arena_mib=16), *HTTP)) as found:
        yield found


def asked(name: str) -> list[dict[str, Any]]:
    """Return a message about one picture file."""
    return [{"role": "user", "content": [part_of({"type": "image", "image": name}), text("what?")]}]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize("name", CASES)
def test_golden_answers(node: Node, name: str) -> None:
    case = CASES[name]
    reply = chat(node, messages_of(case), len(case["greedy"]), cache_salt=name)
    assert reply.status == 200, reply.body
    assert reply.json["prompt_token_ids"] == case["prompt"]
    assert reply.json["choices"][0]["token_ids"] == case["greedy"]
    assert reply.json["usage"]["prompt_tokens"] == len(case["prompt"])
    assert cached(reply) == 0


def test_turns_resume_at_exact_turn_ends(node: Node) -> None:
    """Each turn sends all pictures again. The next one resumes behind its last computed token."""
    ended = 0
    for name in ("middle", "turn2", "turn3"):
        case = CASES[name]
        reply = chat(node, messages_of(case), len(case["greedy"]), cache_salt="turns")
        assert reply.json["choices"][0]["token_ids"] == case["greedy"]
        assert cached(reply) == ended
        ended = len(case["prompt"]) + len(case["greedy"]) - 1


def test_another_picture_of_the_same_size_is_no_hit(node: Node) -> None:
    """The same text stands before and behind the pictures."""
    urls = [data_url(file_of(side)) for side in ("left", "right")]
    words = text("w" * 70)
    questions = [
        [{"role": "user", "content": [words, {"type": "image_url", "image_url": url}, words]}]
        for url in urls
    ]
    first, other, again = (
        chat(node, question, cache_salt="same size") for question in (*questions, questions[0])
    )
    opening = first.json["prompt_token_ids"].index(START)
    assert first.json["prompt_token_ids"] == other.json["prompt_token_ids"]
    assert cached(other) <= opening < cached(again)
    assert ids_of(first) == ids_of(again) != ids_of(other)


def test_no_hit_under_another_salt(node: Node) -> None:
    first, other = (chat(node, asked("big.png"), cache_salt=salt) for salt in ("one", "another"))
    assert ids_of(first) == ids_of(other) and cached(other) == 0


def file_of(side: str) -> bytes:
    """Return a picture of 160 x 160 pixels with one dark half."""
    image = Image.new("RGB", (160, 160), "white")
    image.paste((0, 0, 90), (0, 0, 80, 160) if side == "left" else (80, 0, 160, 160))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def ids_of(reply: Reply) -> list[int]:
    found: list[int] = reply.json["choices"][0]["token_ids"]
    return found


def test_several_answers_streams_and_counts(node: Node) -> None:
    reply = chat(node, asked("a.png"), n=2, seed=3, temperature=1.0)
    assert reply.status == 200 and len(reply.json["choices"]) == 2
    streamed = chat(node, asked("a.png"), stream=True, stream_options={"include_usage": True})
    count = reply.json["usage"]["prompt_tokens"]
    assert streamed.events[-1]["usage"]["prompt_tokens"] == count
    counted = ask(node.http_address, "POST", "/tokenize", {"messages": asked("a.png")})
    assert counted.json["tokens"] == reply.json["prompt_token_ids"]
    assert counted.json["count"] == count


def test_logprobs_of_a_prompt_are_null_inside_pictures(node: Node) -> None:
    reply = chat(node, asked("a.png"), prompt_logprobs=0)
    scores, tokens = reply.json["prompt_logprobs"], reply.json["prompt_token_ids"]
    assert tokens.count(IMAGE) == 12
    assert [place for place, score in enumerate(scores) if score is None] == [
        place for place, token in enumerate(tokens) if place == 0 or token == IMAGE
    ]


def test_a_shared_answer_continues_behind_a_picture(node: Node) -> None:
    opened = [*asked("a.png"), {"role": "assistant", "content": "it is"}]
    fields = {"add_generation_prompt": False, "continue_final_message": True}
    reply = chat(node, opened, **fields)
    assert reply.status == 200
    assert reply.json["prompt_token_ids"].count(IMAGE) == 12


REFUSED: dict[str, tuple[str, tuple[int, str]]] = {
    "address": ("https://example.org/a.png", (400, "picture_not_fetched")),
    "no picture": (data_url(b"words"), (400, "invalid")),
    "PDF": (data_url(b"%PDF-1.7"), (400, "invalid")),
    # Only the decoder meets it.
    "cut off": (data_url(picture_file(400, 300)[:-200]), (400, "invalid")),
    "too many pixels": (data_url(png_of(1 << 14, 1 << 14)), (413, "picture_too_large")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_place(node: Node, name: str) -> None:
    url, refusal = REFUSED[name]
    part = {"type": "image_url", "image_url": {"url": url}}
    reply = chat(node, [{"role": "user", "content": [text("see"), part]}])
    assert reply.refusal == refusal, reply.body
    assert "messages[0].content[1]" in reply.error["message"]
    assert chat(node, asked("a.png")).status == 200


def test_a_picture_of_a_system_message_is_refused(node: Node) -> None:
    system = {"role": "system", "content": asked("a.png")[0]["content"]}
    reply = chat(node, [system, *asked("a.png")])
    assert reply.refusal == (400, "invalid")
    assert "messages[0].content[0]" in reply.error["message"]


@pytest.mark.parametrize("blind", [("--vision", "off"), ("--engine-process", "process")])
def test_a_node_that_sees_nothing_refuses_pictures(blind: tuple[str, str]) -> None:
    with running(Node("serve", *flags(FOLDER, arena_mib=16), *HTTP, *blind)) as node:
        reply = chat(node, asked("a.png"))
        assert reply.refusal == (400, "picture_unseen")
        assert "messages[0].content[0] is a picture" in reply.error["message"]
        case = CASES["text"]
        words = chat(node, messages_of(case), len(case["greedy"]))
        assert ids_of(words) == case["greedy"]
