"""One daemon and a pair give the same tokens and logprobs, through the SDK and OpenAI's client.
Covered: every sampling field, several answers to one prompt, lists of prompts, and scores. All
choices share one hand-over."""

from collections.abc import Iterator
from typing import Any

import pytest

from tasuki.client.answer import Answer
from tasuki.client.prompt import Prompt, SamplingOptions
from tests.harness.daemons import Node
from tests.harness.metrics_text import scraped
from tests.harness.running_nodes import HTTP, fused_node, node_pair
from tests.harness.sdk_clients import openai_client

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 4
DRAWN: SamplingOptions = {
    "max_new_tokens": 16,
    "temperature": 1.5,
    "seed": 5,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.25,
    "ignore_eos": True,
}
EVERY: SamplingOptions = {
    "max_new_tokens": 24,
    "temperature": 1.5,
    "top_k": 200,
    "top_p": 0.98,
    "seed": 5,
    "min_p": 0.001,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "repetition_penalty": 1.25,
    "logit_bias": {40: 1.5, 41: -100.0},
    "min_tokens": 20,
    "bad_words": ["the", "it was"],
    "allowed_token_ids": range(300),
    "top_logprobs": 20,
}
EVERY_TEXT = "Call me Ishmael. Some years ago, never mind how long precisely, I went to sea. " * 4
CHOICES = 4
ROUNDING = 1e-4
"""Tolerance of a log-probability: prompts sent together may or may not share forwards."""
Told = dict[str, Any]


def drawn_alone(node: Node, choice: int) -> tuple[int, ...]:
    sampling: SamplingOptions = {**DRAWN, "seed": DRAWN["seed"] + choice}
    return node.client.generate(Prompt(text=TEXT), **sampling).result().token_ids


def by_sdk(node: Node, prefilled_on: str) -> list[tuple[int, ...]]:
    """Return the tokens of each choice."""
    answers = node.client.generate(Prompt(text=TEXT), n=CHOICES, **DRAWN).results()
    assert {answer.usage.prefilled_on for answer in answers} == {prefilled_on}
    assert {answer.usage.hit.usable_tokens for answer in answers if answer.usage.hit} == {0}
    return [answer.token_ids for answer in answers]


def by_openai(node: Node) -> Told:
    """Return whole and streamed choices, a list of prompts, and lm-eval's loglikelihood."""
    client = openai_client(node.http_address)
    prompts = [TEXT, TEXT[:100] + "and", "It"]
    asked: Told = {"model": "embedded", "temperature": 1.2, "seed": 3, "max_tokens": 8, "n": 2}
    whole = client.completions.create(prompt=prompts, **asked)
    streamed = [""] * len(whole.choices)
    for chunk in client.completions.create(prompt=prompts, stream=True, **asked):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert [choice.index for choice in whole.choices] == list(range(2 * len(prompts)))
    assert streamed == [choice.text for choice in whole.choices]
    scored = client.completions.create(
        model="embedded", prompt=prompts, echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    alone = client.completions.create(
        model="embedded", prompt=prompts, echo=True, logprobs=1, max_tokens=0
    )
    for one, other in zip(scored.choices, alone.choices, strict=True):
        assert one.text.startswith(other.text)
        assert one.logprobs.tokens[:-1] == other.logprobs.tokens
        [first, *ours], [none, *theirs] = (
            choice.logprobs.token_logprobs for choice in (one, other)
        )
        assert first is none is None
        assert ours[:-1] == pytest.approx(theirs, abs=ROUNDING)
        assert "".join(other.logprobs.tokens) == other.text
    assert [choice.text for choice in alone.choices] == prompts
    chat = client.chat.completions.create(
        messages=[{"role": "user", "content": TEXT}],
        extra_body={"prompt_logprobs": 2},
        **asked,
    )
    assert len(chat.model_extra["prompt_logprobs"]) == chat.usage.prompt_tokens
    return {
        "texts": streamed,
        "usage": (whole.usage.prompt_tokens, whole.usage.completion_tokens),
        "logprobs": [choice.logprobs.token_logprobs[1:] for choice in alone.choices],
        "chat": [choice.message.content for choice in chat.choices],
    }


@pytest.fixture(scope="module")
def fused() -> Iterator[Node]:
    with fused_node(*HTTP) as node:
        yield node


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Node, Node]]:
    remote = ("--local-prefill-tokens", "0", *HTTP)
    with node_pair(prefill=HTTP, decode=remote) as nodes:
        yield nodes


def sent_transfers(prefill: Node) -> float:
    return scraped(prefill.http_address).get("tasuki_handover_sent_rooms_total{outcome=sent}", 0)


def test_choices_lists_and_scores_are_alike_through_two_daemons(
    fused: Node, pair: tuple[Node, Node]
) -> None:
    prefill, decode = pair
    one_tokens, one = by_sdk(fused, "local"), by_openai(fused)
    before = sent_transfers(prefill)
    two_tokens = by_sdk(decode, "prefill")
    assert sent_transfers(prefill) - before == 1
    two = by_openai(decode)
    singles = [drawn_alone(fused, choice) for choice in range(CHOICES)]
    assert one_tokens == two_tokens == singles
    assert len(set(one_tokens)) == CHOICES
    ours, theirs = one.pop("logprobs"), two.pop("logprobs")
    assert ours == [pytest.approx(of_prompt, abs=ROUNDING) for of_prompt in theirs]
    assert one == two


def answers(node: Node) -> list[Answer]:
    """Return three answers: cold, then from the cache, then of the first token alone."""
    asked = [EVERY, EVERY, {**EVERY, "max_new_tokens": 1, "min_tokens": 1}]
    prompt = Prompt(text=EVERY_TEXT)
    return [node.client.generate(prompt, **options).result() for options in asked]  # type: ignore[typeddict-item]


def test_every_field_answers_alike_through_two_daemons(
    fused: Node, pair: tuple[Node, Node]
) -> None:
    one, two = answers(fused), answers(pair[1])
    assert two[0].usage.prefilled_on == "prefill"
    for ours, theirs in zip(one, two, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.logprobs == theirs.logprobs and ours.top_logprobs == theirs.top_logprobs
        assert len(ours.top_logprobs) == len(ours.token_ids)
        assert {len(top) for top in ours.top_logprobs} == {20}
        assert max(ours.token_ids) < 300 and 41 not in ours.token_ids
    assert len(one[0].token_ids) >= 20
    assert one[0].token_ids == one[1].token_ids
