"""Odd sizes of Qwen4-Exp against the naive reference: every cut, drafts, folds."""

import random
from dataclasses import replace

import pytest
import torch

from tasuki.model.families.qwen4_exp.reference import Naive
from tasuki.model.forward import Batch, LayerHooks, NullHooks, SequenceSlice
from tests.harness.covering import slow_behind
from tests.harness.qwen4_models import PAGED, OwnSequence, odd_raw, random_model

TOLERANCE = 1e-3
SHAPES = {
    "odd": odd_raw(),
    "blocks of 2": odd_raw(indexer_budget=6, indexer_compress_ratio=2, output_gate_type="silu"),
    "blocks of a page": odd_raw(indexer_budget=64, indexer_compress_ratio=64, head_dim=24),
    "no table": odd_raw(ple_layer_ids=[], eos_token_id=5, linear_key_head_dim=40),
    "bigrams": odd_raw(ngram_size=2, ple_layer_ids=[4], hc_count=2, indexer_n_heads=1),
}
NAMES = {name: name for name in SHAPES}
TOKENS = 150


def prompt(seed: int, tokens: int = TOKENS) -> list[int]:
    """Return tokens with ends of text among them."""
    choose = random.Random(seed)
    return [choose.choice((5, 5, *range(97))) for _ in range(tokens)]


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).abs().max())


@pytest.mark.parametrize("name", slow_behind(2, NAMES))
def test_logits_and_drafts_equal_the_naive_ones(name: str) -> None:
    model = random_model(SHAPES[name])
    tokens = prompt(1)
    naive = Naive(model.config, model.weights)
    expected = naive.forward(tokens).logits[-1]
    drafted = naive.draft_logits(tokens, 8)
    for chunk in (1000, 37, 1):
        sequence = OwnSequence(model)
        for begin in range(0, TOKENS, chunk):
            logits = sequence.forward(tokens[begin : begin + chunk])
        assert off(logits, expected) < TOLERANCE
        assert off(sequence.drafted(8), drafted) < TOLERANCE


@pytest.mark.parametrize("name", slow_behind(1, {name: name for name in ("blocks of 2", "odd")}))
def test_a_prompt_resumes_at_each_of_its_tokens(name: str) -> None:
    model = random_model(SHAPES[name])
    tokens = prompt(2, 90)
    expected = Naive(model.config, model.weights).forward(tokens).logits[-1]
    for cut in range(1, 90):
        sequence = OwnSequence(model)
        sequence.forward(tokens[:cut])
        assert off(sequence.forward(tokens[cut:]), expected) < TOLERANCE, cut


class Kept(LayerHooks):
    """Keeps the inputs of every mixer."""

    def __init__(self) -> None:
        self.inputs: dict[int, torch.Tensor] = {}

    def mixer_inputs(self, layer: int, projected: torch.Tensor) -> None:
        self.inputs[layer] = projected.clone()


@pytest.mark.parametrize("name", ["odd", "no table"])
def test_folded_states_equal_stepped_ones(name: str) -> None:
    model = random_model(SHAPES[name])
    tokens, drafts = prompt(3, 61), [9, 5, 10, 11, 12, 13]
    verified, stepped = OwnSequence(model), OwnSequence(model)
    for sequence in (verified, stepped):
        sequence.forward(tokens)
    for count in (1, 4, 6):
        kept = Kept()
        item = verified.slice(drafts, write_slot=None, stepped=True)
        model.forward(Batch.pack([item]), verified.arena, kept)
        for token in drafts[:count]:
            stepped.forward([token])
        accepted = replace(item, token_ids=drafts[:count], write_slot=verified.slots[1])
        inputs = {layer: rows[:count] for layer, rows in kept.inputs.items()}
        model.fold(Batch.pack([accepted]), inputs, verified.arena)
        verified.slots.reverse()
        verified.tokens += drafts[:count]
        for own, other in zip(verified.views, stepped.views, strict=True):
            for part in own:
                if part not in PAGED:
                    after = own[part][verified.slots[0]], other[part][stepped.slots[0]]
                    assert off(*after) < 1e-4, part
    logits = [sequence.forward([3]) for sequence in (verified, stepped)]
    assert off(*logits) < TOLERANCE


def test_a_chain_of_drafts_equals_the_entries_of_forwards() -> None:
    """Drafts cross a block's end, and read raw keys that no slot has yet."""
    model = random_model(SHAPES["blocks of 2"])
    tokens, following = prompt(4, 77), [9, 10, 11, 12, 13]
    sequence = OwnSequence(model)
    sequence.forward(tokens)
    row = model.carried(sequence.arena)[sequence.slots[0]]
    naive = Naive(model.config, model.weights)
    # The first draft alone has a naive twin: later ones go on from drafted streams.
    for place, token in enumerate(following):
        item = SequenceSlice([token], 77 + place, sequence.pages, 0, None)
        logits, rows = model.draft_logits(row[None], Batch.pack([item]), sequence.arena)
        row = rows[0]
        if not place:
            assert off(logits[0], naive.draft_logits(tokens, token)) < TOLERANCE
    assert logits.isfinite().all()


def test_sequences_of_a_batch_do_not_touch_each_other() -> None:
    model = random_model(SHAPES["odd"])
    first, second = prompt(5, 80), prompt(6, 43)
    alone = [OwnSequence(model).forward(tokens) for tokens in (first, second)]
    sequence = OwnSequence(model, slabs=30)
    other = OwnSequence(model, arena=sequence.arena, slab=15)
    items = [sequence.slice(first), other.slice(second)]
    logits = model.forward(Batch.pack(items), sequence.arena, NullHooks())
    for row, want in zip(logits, alone, strict=True):
        assert off(row, want) < 1e-4
