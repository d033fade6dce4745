"""Answers from adjusted logits. Every cut of the work samples the same tokens as a naive loop,
token by token. Cuts: chunks, batches, a hand-over, a retraction, a resume."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from tasuki.engine import messages as m
from tasuki.model.forward import Batch, NullHooks, SequenceSlice
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.reference import Sampled, sample, stop_ids
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tests.harness.covering import every_value
from tests.harness.engine_pair import EnginePair
from tests.harness.engines import Lone, alone, prompt, submit, tiny_engine, tiny_parts
from tests.kernels.adjustments_twin import naive_adjusted

NEW = 16
LENGTH = 184
SCHEMA = Grammar(
    GrammarKind.JSON_SCHEMA,
    '{"type": "object", "properties": {"a": {"type": "integer", "minimum": -99, "maximum": 99},'
    ' "b": {"enum": ["x", "yes", null]}}, "required": ["a"], "additionalProperties": false}',
)
WORDS = Grammar(GrammarKind.REGEX, "([a-z]{2,4} ){40}")
CLOSING = (10, 37, 10, 10)
BEHIND_THINKING = replace(SCHEMA, closing=37, gap=(10, 10))
ADDED: dict[str, dict[str, object]] = {
    "presence": {"presence_penalty": 2.0, "seed": 1},
    "frequency": {"frequency_penalty": 1.9},
    "repetition": {"repetition_penalty": 1.7},
    "greedy": {"repetition_penalty": 100.0, "temperature": 0.0},
    "bias": {"logit_bias": ((5, 80.0), (9, 81.0))},
    "allowed": {"allowed_token_ids": (3, 4, 5, 6, 70)},
    "bad words": {"bad_words": ((90, 90), (10,), (62, 25), (94, 94, 94))},
    "min_tokens": {"min_tokens": 12, "stop_token_ids": tuple(range(100)), "ignore_eos": False},
    "min_p": {"min_p": 0.2},
    "top_logprobs": {"top_logprobs": 20},
    "schema": {"grammar": SCHEMA, "stop_token_ids": (127,)},
    "words": {
        "grammar": Grammar(GrammarKind.REGEX, "([a-z]{2,4} ){40}"),
        "logit_bias": ((113, 9.0),),
    },
    "thinking": {"grammar": BEHIND_THINKING},
    "budget": {"thinking": ThinkingBudget(6, (10, 99, 10), 99)},
    "no budget": {"thinking": ThinkingBudget(0, CLOSING, 37)},
    "budget of a token": {"thinking": ThinkingBudget(1, CLOSING, 37), "repetition_penalty": 1.7},
    "budget of what the answer opens": {
        "thinking": ThinkingBudget(4, CLOSING, 37, 5),
        # It opens the thought at once, and again inside.
        "logit_bias": ((5, 90.0),),
    },
    "budget of what the answer does not open": {
        "thinking": ThinkingBudget(0, CLOSING, 37, 5),
        "logit_bias": ((5, -100.0), (9, 20.0)),
    },
    "budget closed before": {
        "thinking": ThinkingBudget(9, CLOSING, 37),
        "logit_bias": ((37, 60.0),),
    },
    "budget and schema": {
        "grammar": BEHIND_THINKING,
        "thinking": ThinkingBudget(3, CLOSING, 37),
        "stop_token_ids": (127,),
    },
}
ALL = {
    "presence_penalty": 0.5,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.3,
    "logit_bias": ((5, 2.0), (9, -100.0)),
    # Some single tokens are allowed by the grammar.
    "bad_words": ((5, 5), (10,), (3, 4, 5), *((digit,) for digit in range(48, 58))),
    "allowed_token_ids": tuple(range(80)),
    "min_tokens": 10,
    "stop_token_ids": (11, 12, 13),
    "min_p": 0.01,
    "top_k": 60,
    "top_p": 0.95,
    "top_logprobs": 5,
    "grammar": Grammar(GrammarKind.REGEX, "[0-9A-O ]*"),
}
CASES = ADDED | {"all": ALL}


def params(case: str, **changes: object) -> SamplingParams:
    sampled = {"max_new_tokens": NEW, "ignore_eos": True, "seed": 3, "temperature": 15.0}
    fields = sampled | CASES[case] | changes
    return SamplingParams(**fields)  # type: ignore[arg-type]


@cache
def naive_answer(case: str, seed: int = 0) -> tuple[Sampled, ...]:
    """Return an answer with every token from a forward of all tokens before it, and nothing kept
    between."""
    asked, sampling = prompt(LENGTH, seed), params(case)
    parts = tiny_parts()
    blocks = parts.layout.blocks_per_slab
    ends = stop_ids(sampling, parts.model_config.eos_ids)
    sampled: list[Sampled] = []
    while len(sampled) < NEW and not (sampled and sampled[-1].token in ends):
        output = [item.token for item in sampled]
        tokens = asked + output
        parts.arena.bytes.zero_()
        pages = [blocks * (2 + page) for page in range(-(-len(tokens) // 64))]
        batch = Batch.pack([SequenceSlice(tokens, 0, pages, 0, 1)])
        with torch.inference_mode():
            logits = parts.model.forward(batch, parts.arena, NullHooks())
        row = naive_adjusted(logits[0].numpy(), sampling, ends, asked, output)
        sampled += sample(logits, [sampling], [len(tokens)], torch.from_numpy(row)[None])
    return tuple(sampled)


def assert_naive(engine: Lone, case: str, name: str = "r", seed: int = 0) -> None:
    naive = naive_answer(case, seed)
    said = [item for item in engine.all_said(m.TokenOut) if item.request_id == name]
    assert [item.token for item in said] == [item.token for item in naive]
    for item, want in zip(said, naive, strict=True):
        assert item.logprob == pytest.approx(want.logprob, abs=1e-3)
        assert [token for token, _ in item.top] == [token for token, _ in want.top]
        np.testing.assert_allclose(
            [logprob for _, logprob in item.top], [logprob for _, logprob in want.top], atol=1e-3
        )


@pytest.mark.parametrize("case", CASES)
def test_every_field_answers_as_the_naive_loop(case: str) -> None:
    engine = tiny_engine(prefill_chunk_tokens=64)
    engine.ask("r", prompt(LENGTH), NEW, sampling=params(case))
    assert_naive(engine, case)
    plain = params("top_logprobs", temperature=params(case).temperature)
    engine.ask("plain", prompt(LENGTH), NEW, sampling=plain)
    assert case == "top_logprobs" or engine.tokens("plain") != engine.tokens("r"), "no effect"
    engine.assert_at_rest()


def test_a_batch_of_all_kinds_answers_as_each_alone() -> None:
    engine = tiny_engine(prefill_chunk_tokens=64)
    for seed, case in enumerate(CASES):
        engine.post(submit(case, prompt(LENGTH, seed % 2), NEW, sampling=params(case)))
    engine.post(submit("plain", prompt(LENGTH), NEW))
    engine.run()
    for seed, case in enumerate(CASES):
        assert_naive(engine, case, case, seed % 2)
    engine.assert_at_rest()


def test_a_retracted_answer_goes_on_as_if_nothing_had_been() -> None:
    engine = tiny_engine(arena_mib=0.3, prefill_chunk_tokens=64)
    sampling = params("all", max_new_tokens=130, stop_token_ids=())
    names = {f"r{seed}": prompt(150, seed) for seed in range(5)}
    for name, tokens in names.items():
        engine.post(submit(name, tokens, 130, sampling=sampling))
    engine.run()
    retracted = [name for name in names if "Retracted" in engine.phases(name)]
    assert retracted, "the arena is too large for this test"
    for name, tokens in names.items():
        assert engine.tokens(name) == alone(tokens, 130, sampling=sampling)


@every_value(case={name: name for name in CASES}, early={"early step": True, "at Done": False})
def test_a_handed_over_prompt_answers_as_the_naive_loop(
    case: str, early: bool, pair: EnginePair
) -> None:
    """The prefill node samples the first token, an early step the second, batches the others."""
    asked = submit("r", prompt(LENGTH), NEW, sampling=params(case))
    if early:
        pair.link.bytes_per_second = 2e6
        pair.join(pair.begin(asked))
    else:
        transfer = pair.hand_over(asked)
        pair.ready(transfer, None)
        pair.done(transfer)
        pair.decode.run()
    assert_naive(pair.decode, case)


def test_a_lost_hand_over_goes_on_behind_its_first_token(pair: EnginePair) -> None:
    asked = submit("r", prompt(LENGTH), NEW, sampling=params("all"))
    transfer = pair.hand_over(asked)
    pair.ready(transfer, None)
    pair.lose(transfer)
    assert_naive(pair.decode, "all")


def test_an_answer_that_resumes_a_cached_turn_is_that_of_a_cold_engine() -> None:
    """The cached part of a prompt is not computed again but still counted."""
    warm = tiny_engine(prefill_chunk_tokens=64)
    first = warm.ask("first", prompt(LENGTH), NEW, sampling=params("all"))
    turn = prompt(LENGTH) + first + prompt(20, 9)
    sampling = replace(params("all"), repetition_penalty=1.9)
    resumed = warm.ask("turn", turn, NEW, sampling=sampling)
    assert warm.hit("turn").usable_tokens > LENGTH
    cold = tiny_engine(prefill_chunk_tokens=64)
    assert resumed == cold.ask("turn", turn, NEW, sampling=sampling)


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("logit_bias", ((128, 1.0),)),
        ("bad_words", ((3, 128),)),
        ("allowed_token_ids", (2, 128)),
        ("thinking", ThinkingBudget(1, (3, 128), 3)),
    ],
)
def test_a_token_that_the_model_does_not_have_is_refused_by_the_fields_name(
    field: str, named: object
) -> None:
    engine = tiny_engine()
    sampling = SamplingParams(**{field: named})  # type: ignore[arg-type]
    engine.post(submit("r", prompt(9), 4, sampling=sampling))
    error = engine.rejected("r")
    assert error.kind is m.ErrorKind.INVALID
    assert error.message.startswith(f"{field} names token 128, which is outside")
