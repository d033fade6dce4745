"""Golden answers of all sets over HTTP, and a long session exact at every turn end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.covering import slow_behind
from tests.harness.daemons import Node, flags
from tests.harness.goldens import BESIDE
from tests.harness.http_calls import Reply
from tests.harness.picture_answers import cached, chat, data_url_of, golden_messages
from tests.harness.picture_goldens import NAMES, needs_goldens
from tests.harness.running_nodes import HTTP, running

pytestmark = needs_goldens

TURNS, ANSWER = 10, 9
LETTERS = list(range(97, 123))
"""Ids of tokens rendered again as they are."""


@pytest.fixture(scope="module", params=NAMES)
def node(request: pytest.FixtureRequest) -> Iterator[tuple[Path, Node]]:
    folder = BESIDE / str(request.param)
    with running(Node("serve", *flags(folder, arena_mib=96), *HTTP)) as found:
        yield folder, found


def cases_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the cases of chats with images, by name."""
    cases = json.loads((folder / "golden.json").read_text())["cases"]
    return {
        case["name"]: case
        for case in cases
        if case.get("raw_text") is None and all(item["kind"] == "image" for item in case["items"])
    }


def ids_of(reply: Reply) -> list[int]:
    assert reply.status == 200, reply.body
    found: list[int] = reply.json["choices"][0]["token_ids"]
    return found


@pytest.mark.parametrize("few", slow_behind(1, {"two cases": True, "all cases": False}))
def test_golden_answers(node: tuple[Path, Node], few: bool) -> None:
    folder, found = node
    cases = cases_of(folder)
    names = [name for name in ("middle", "turn2") if name in cases] if few else [*cases]
    assert len(names) > 1
    for name in names:
        case = cases[name]
        messages = golden_messages(case, folder)
        for turn in ("cold", "again"):
            reply = chat(found, messages, len(case["greedy"]), cache_salt=f"{name} {few}")
            assert ids_of(reply) == case["greedy"], (name, turn)
            assert reply.json["prompt_token_ids"] == case["prompt"]
            if turn == "cold":
                assert cached(reply) == 0
            elif len(case["prompt"]) > PAGE_TOKENS:
                assert cached(reply) > 0


def test_a_session_of_ten_turns_is_exact_at_every_turn_end(node: tuple[Path, Node]) -> None:
    """Three turns show a picture. Each sends all of them again, and resumes behind the last
    computed token of the turn before. A turn under a salt of its own computes all anew."""
    folder, found = node
    names = sorted({name for case in cases_of(folder).values() for name in files_of(case)})[:3]
    assert len(names) == 3
    messages: list[dict[str, Any]] = []
    ended = 0
    for turn in range(TURNS):
        parts: list[dict[str, Any]] = [{"type": "text", "text": f"and turn {turn}?"}]
        if turn % 3 == 0 and turn // 3 < len(names):
            url = data_url_of(folder, names[turn // 3])
            parts.insert(turn % 2, {"type": "image_url", "image_url": {"url": url}})
        messages.append({"role": "user", "content": parts})
        fields = {"allowed_token_ids": LETTERS}
        reply = chat(found, messages, ANSWER, cache_salt="session", **fields)
        answer = ids_of(reply)
        assert len(answer) == ANSWER and cached(reply) == ended, turn
        anew = chat(found, messages, ANSWER, cache_salt=f"turn {turn}", **fields)
        assert ids_of(anew) == answer and cached(anew) == 0
        assert anew.json["prompt_token_ids"] == reply.json["prompt_token_ids"]
        ended = len(reply.json["prompt_token_ids"]) + ANSWER - 1
        words = reply.json["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": words})


def files_of(case: dict[str, Any]) -> list[str]:
    return [name for item in case["items"] for name in item["files"]]
