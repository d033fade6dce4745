"""Every field of the sampling, by the SDK, through one daemon and through two: the same tokens,
logprobs and likeliest tokens."""

from tasuki.client.answer import Answer
from tasuki.client.prompt import Prompt, SamplingOptions
from tests.harness.daemons import Node
from tests.harness.running_nodes import fused_node, node_pair

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 4
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


def answers(node: Node) -> list[Answer]:
    """Cold, then from the cache, then an answer of the first token alone."""
    asked = [EVERY, EVERY, {**EVERY, "max_new_tokens": 1, "min_tokens": 1}]
    prompt = Prompt(text=TEXT)
    return [node.client.generate(prompt, **options).result() for options in asked]  # type: ignore[typeddict-item]


def test_every_field_answers_alike_through_two_daemons() -> None:
    with fused_node() as node:
        fused = answers(node)
    with node_pair(decode=("--local-prefill-tokens", "0")) as (_, decode):
        pair = answers(decode)
    assert pair[0].usage.prefilled_on == "prefill"
    for one, other in zip(fused, pair, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == other.logprobs and one.top_logprobs == other.top_logprobs
        assert len(one.top_logprobs) == len(one.token_ids)
        assert {len(top) for top in one.top_logprobs} == {20}
        assert max(one.token_ids) < 300 and 41 not in one.token_ids
    assert len(fused[0].token_ids) >= 20
    assert fused[0].token_ids == fused[1].token_ids
