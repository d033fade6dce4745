"""Qwen4-Exp resumed at each token of the longest golden, from pages and slots of one prefill."""

import pytest
import torch

from tasuki.model.families.qwen4_exp.stack.model import Qwen4ExpModel
from tasuki.pycache.arena import Arena, copy_page, copy_slot
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.goldens import Golden, cases_of
from tests.harness.qwen4_models import (
    FOLDER,
    PAGED,
    OwnSequence,
    load_model,
    needs_goldens,
    odd_raw,
    random_model,
)

_STEP = 23
_SPARE = 12
"""Slabs of a sequence: four of slots, the others of its pages."""


def longest() -> tuple[Qwen4ExpModel, Golden]:
    cases = cases_of("qwen4-exp-tiny")
    return load_model(FOLDER), max(cases.values(), key=lambda case: len(case.prompt))


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.float() - want.float()).abs().max()) if got.numel() else 0.0


def resumed(positions: range) -> None:
    """Prefill once, with a checkpoint at each position. Then go on from each, on a copy of the page
    that the position is inside of, which holds the tokens behind it too."""
    model, case = longest()
    config, prompt = model.config, case.prompt
    whole = OwnSequence(model, slabs=2 * _SPARE + len(positions))
    marks = [(at, 2 * _SPARE + row) for row, at in enumerate(positions)]
    whole.forward(prompt, checkpoints=marks)
    blocks = len(prompt) // config.index.ratio
    for at, slot in marks:
        later = OwnSequence(model, arena=whole.arena, slab=_SPARE)
        own, shared = list(later.pages), at // PAGE_TOKENS
        later.pages[:shared] = whole.pages[:shared]
        copy_page(whole.arena, whole.pages[shared], own[shared])
        copy_slot(whole.arena, slot, later.slots[0])
        later.tokens = prompt[:at]
        logits = later.forward(prompt[at:])
        assert off(logits, case.tensor("last_logits")) < case.tolerance["fp32_logits_abs"], at
        for views in whole.views:
            for name in set(views) - {"kv"}:
                if name == "index":
                    rows = [
                        views[name][item.pages].flatten(0, 1)[1:blocks] for item in (whole, later)
                    ]
                else:
                    rows = [views[name][item.slots[0]] for item in (whole, later)]
                assert off(*rows) < 2e-4, (at, name)


@needs_goldens
def test_resumed_at_some_tokens() -> None:
    resumed(range(1, 230, _STEP))


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_goldens
def test_resumed_at_every_token() -> None:
    resumed(range(1, 230))


def test_fp8_rows_are_read_alike_by_steps_and_prompts() -> None:
    """Index keys lie behind the rows' codes and scales, and stay exact."""
    model = random_model(odd_raw())
    layout = model.config.cache_layout("fp8", "float32", "float32")
    tokens = [(7 * at * at + at) % 97 for at in range(110)]
    logits = []
    for chunk in (110, 31, 1):
        sequence = OwnSequence(model, arena=filled(Arena(layout, 12)))
        for begin in range(0, len(tokens), chunk):
            last = sequence.forward(tokens[begin : begin + chunk])
        logits.append(last)
    exact = OwnSequence(model).forward(tokens)
    assert off(logits[0], logits[1]) < 1e-3 and off(logits[0], logits[2]) < 1e-3
    assert 1e-3 < off(logits[0], exact) < 3.0


def filled(arena: Arena) -> Arena:
    """Fill an arena with NaN, or with bytes that are no number."""
    arena.bytes.fill_(0xFF)
    return arena


def test_names_of_parts_of_pages() -> None:
    layout = random_model(odd_raw()).config.cache_layout("float32", "float32", "float32")
    assert {part.name for cache in layout.layers for part in cache.page} == set(PAGED)
