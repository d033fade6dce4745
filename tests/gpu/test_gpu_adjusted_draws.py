"""Adjusted answers on a GPU equal the CPU's, beside rows sampled in the graph."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from tasuki.engine import messages as m
from tasuki.engine.config import EngineConfig
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tests.gpu.shapes import VOCAB, parts_of
from tests.harness.engines import Lone, submit

NEW = 12
CLOSING = (10, VOCAB - 2, 12)
SCHEMA = '{"type": "array", "items": {"enum": ["yes", "no", 12]}, "minItems": 40}'
KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "drawn": {"temperature": 1.0, "top_p": 0.9},
    "penalties": {"presence_penalty": 2.0, "frequency_penalty": 1.5, "repetition_penalty": 3.0},
    "bias": {"logit_bias": ((5, 20.0), (9, 20.1)), "temperature": 1.0},
    "allowed": {"allowed_token_ids": (3, 4, 5, 600), "temperature": 1.0},
    "one allowed": {"allowed_token_ids": (7,), "top_k": 5, "temperature": 1.0},
    "bad words": {"bad_words": ((5, 5), (10,), tuple(range(3)))},
    "min_p": {"min_p": 0.2, "temperature": 3.0},
    "top_logprobs": {"top_logprobs": 20},
    "schema": {"grammar": Grammar(GrammarKind.JSON_SCHEMA, SCHEMA), "temperature": 1.0},
    "words": {"grammar": Grammar(GrammarKind.REGEX, "([a-z]{2,4} ){40}"), "presence_penalty": 1.5},
    "thinking": {"grammar": Grammar(GrammarKind.REGEX, "[a-z ]*", closing=VOCAB - 2)},
    "budget": {"thinking": ThinkingBudget(6, CLOSING, VOCAB - 2)},
    "no budget": {"thinking": ThinkingBudget(0, CLOSING, VOCAB - 2), "temperature": 1.0},
    "budget that is opened": {
        "thinking": ThinkingBudget(5, CLOSING, VOCAB - 2, 5),
        "logit_bias": ((5, 60.0),),
    },
    "budget that is closed before": {
        "thinking": ThinkingBudget(9, CLOSING, VOCAB - 2),
        "logit_bias": ((VOCAB - 2, 30.0),),
        "temperature": 1.0,
    },
    "budget and words": {
        "thinking": ThinkingBudget(4, CLOSING, VOCAB - 2),
        "grammar": Grammar(GrammarKind.REGEX, "[a-z ]*", closing=VOCAB - 2, gap=CLOSING[2:]),
    },
    "all": {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.5,
        "logit_bias": ((5, 3.0), (9, -100.0)),
        "bad_words": ((5, 5),),
        "allowed_token_ids": tuple(range(900)),
        "min_tokens": 6,
        "stop_token_ids": tuple(range(0, 900, 3)),
        "min_p": 0.01,
        "temperature": 2.0,
        "top_k": 200,
        "top_p": 0.95,
        "top_logprobs": 5,
    },
}


def engine(device: str) -> Lone:
    config = EngineConfig(model="dense", dtype="float32", device=device, arena_mib=512)
    parts = parts_of("dense", EngineConfig("", dtype="float32", device=device, arena_mib=512))
    made = Lone(config, parts=parts)
    made.flush()
    return made


def asked(kind: str, seed: int) -> m.Submit:
    sampling = SamplingParams(
        max_new_tokens=NEW,
        ignore_eos=True,
        seed=seed,
        **KINDS[kind],  # type: ignore[arg-type]
    )
    tokens = np.random.default_rng(seed).integers(0, VOCAB, 90).tolist()
    return submit(f"{kind} {seed}", tokens, NEW, sampling=sampling)


def told(engine: Lone, name: str) -> list[m.TokenOut]:
    return [item for item in engine.all_said(m.TokenOut) if item.request_id == name]


def test_a_batch_of_all_kinds_answers_as_the_cpu() -> None:
    gpu, cpu = engine("cuda"), engine("cpu")
    names = [(kind, seed) for kind in KINDS for seed in range(2)]
    for kind, seed in names:
        gpu.post(asked(kind, seed))
    gpu.run()
    for kind, seed in names:
        cpu.post(asked(kind, seed))
        cpu.run()
        name = f"{kind} {seed}"
        got, want = told(gpu, name), told(cpu, name)
        assert [item.token for item in got] == [item.token for item in want], name
        for mine, twin in zip(got, want, strict=True):
            assert mine.logprob == pytest.approx(twin.logprob, abs=1e-3), name
            assert mine.margin == pytest.approx(twin.margin, abs=1e-2), name
            assert [token for token, _ in mine.top] == [token for token, _ in twin.top], name
    gpu.assert_at_rest()


def test_plain_rows_beside_adjusted_ones_are_drawn_as_without_them() -> None:
    gpu = engine("cuda")
    for kind in ("plain", "drawn"):
        gpu.post(asked(kind, 1))
    gpu.run()
    alone = [told(gpu, f"{kind} 1") for kind in ("plain", "drawn")]
    gpu.flush()
    for kind in ("plain", "drawn", "all", "penalties"):
        gpu.post(asked(kind, 1))
    gpu.run()
    assert [[item.token for item in told(gpu, f"{kind} 1")] for kind in ("plain", "drawn")] == [
        [item.token for item in answer] for answer in alone
    ]


def test_adjusted_rows_that_leave_and_come_back_are_told_every_token() -> None:
    """There are more requests than rows of a forward, so they take turns at batch indices."""
    config = EngineConfig("dense", dtype="float32", device="cuda", arena_mib=512, max_batch=3)
    gpu = Lone(
        config,
        parts=parts_of("dense", EngineConfig("", dtype="float32", device="cuda", arena_mib=512)),
    )
    gpu.flush()
    cpu = engine("cpu")
    for seed in range(7):
        gpu.post(asked("penalties", seed))
    gpu.run()
    for seed in range(7):
        cpu.post(asked("penalties", seed))
        cpu.run()
        assert gpu.tokens(f"penalties {seed}") == cpu.tokens(f"penalties {seed}")


def test_adjusted_logits_are_the_cpus_in_every_bit() -> None:
    from tasuki.model.ops.sampling.logit_adjustments import AdjustedRows, adjusted
    from tests.kernels.test_logit_adjustments import VOCAB as SMALL
    from tests.kernels.test_logit_adjustments import adjuster, ids, some_params

    rng = np.random.default_rng(4)
    logits = torch.from_numpy(rng.normal(0, 4, (2000, SMALL)).astype(np.float32))
    rows = AdjustedRows.of(
        [adjuster(some_params(rng), [*ids(rng, 15)], [*ids(rng, 20)], 3) for _ in logits]
    )
    there = adjusted(logits.cuda(), rows.to(torch.device("cuda")))
    assert torch.equal(there.cpu(), adjusted(logits, rows))
    assert all(value.device.type == "cpu" for value in asdict(rows).values())
