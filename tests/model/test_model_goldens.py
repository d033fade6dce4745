"""Every golden case in float32: logits, hidden states, cache contents and greedy tokens, however
the prompt is cut into forwards. Unowned memory is NaN throughout."""

from collections.abc import Callable

import pytest
import torch

from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.forward import Batch, LayerHooks
from tasuki.model.layer_kind import LayerKind
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.covering import every_value, slow_behind
from tests.harness.goldens import (
    MODELS,
    QUANTISED,
    Golden,
    Request,
    Workspace,
    final_hidden,
    golden,
    load_model,
    logits_of,
    model_cases,
)

CASES = model_cases()
# Every forward of a quantised model dequantises all weights it uses, so these have one case each.
QUICK = [case for case in CASES if case[0] in MODELS or case[1] == "turn2"]
SLOW = [case for case in CASES if case not in QUICK]
LONG = {f"{model}-{case}": (model, case) for model, case in CASES if case in ("long", "turn2")}
PLAIN = {name: case for name, case in LONG.items() if case[0] in MODELS}
CODED = {name: case for name, case in LONG.items() if case[0] in QUANTISED}
TWO_TURNS = {model: model for model, case in CASES if case == "turn2"}


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    assert got.shape == want.shape
    difference = float((got.float() - want).abs().max())
    assert difference <= tolerance, f"off by {difference}, allowed {tolerance}"


def check_states(
    request: Request, slot: int, case: Golden, prefix: str, layers: list[LayerKind]
) -> None:
    arena = request.workspace.arena
    for layer, kind in enumerate(layers):
        name = f"{prefix}.layer{layer}"
        if kind is LayerKind.GDN:
            conv, ssm = arena.view(layer, "conv")[slot], arena.view(layer, "ssm")[slot]
            recurrent = case.tensor(f"{name}.recurrent").transpose(1, 2)
            close(conv, case.tensor(f"{name}.conv"), case.tolerance["fp32_conv_abs"])
            close(ssm, recurrent, case.tolerance["fp32_recurrent_abs"])
        elif f"{name}.key" in case.arrays:
            rows = arena.view(layer, "kv")[request.pages].permute(2, 0, 3, 1, 4).flatten(1, 2)
            for part, row in (("key", rows[0]), ("value", rows[1])):
                want = case.tensor(f"{name}.{part}")
                close(row[: want.shape[1]].transpose(0, 1), want, 2e-4)


def new_request(model: Qwen35Model, case: Golden) -> Request:
    return Request(Workspace(model), len(case.prompt) + len(case.greedy))


def started(model_name: str, case_name: str) -> tuple[Golden, Qwen35Model, Request]:
    """Return a case, its model and a request for it with nothing computed."""
    case, model = golden(model_name, case_name), load_model(model_name)
    return case, model, new_request(model, case)


@pytest.mark.parametrize(
    ("model_name", "case_name"),
    slow_behind(len(QUICK), {"-".join(case): case for case in QUICK + SLOW}),
)
def test_one_prefill_then_greedy(model_name: str, case_name: str) -> None:
    case, model, request = started(model_name, case_name)
    logits = request.forward(case.prompt)
    close(logits, case.tensor("last_logits"), case.tolerance["fp32_logits_abs"])
    length = len(case.prompt)
    kinds = list(model.config.layer_kinds)
    if (f"at{length}", length) in {(name.split(".")[0], at) for name, at, _ in case.states()}:
        check_states(request, request.slots[0], case, f"at{length}", kinds)
    assert request.greedy(logits, len(case.greedy)) == case.greedy
    if "end.layer0.conv" in case.arrays:
        check_states(request, request.slots[0], case, "end", kinds)


@every_value(case=PLAIN, chunk={"64": 64, "128": 128, "100": 100})
def test_chunked_prefill(case: tuple[str, str], chunk: int) -> None:
    assert_computed_in_chunks(*case, chunk)


@pytest.mark.parametrize(("model_name", "case_name"), slow_behind(1, PLAIN))
def test_prefill_token_by_token(model_name: str, case_name: str) -> None:
    assert_computed_in_chunks(model_name, case_name, 1)


@pytest.mark.parametrize(("model_name", "case_name"), slow_behind(1, CODED))
def test_chunked_prefill_of_quantised_weights(model_name: str, case_name: str) -> None:
    assert_computed_in_chunks(model_name, case_name, 100)


def assert_computed_in_chunks(model_name: str, case_name: str, chunk: int) -> None:
    case, _, request = started(model_name, case_name)
    for begin in range(0, len(case.prompt), chunk):
        logits = request.forward(case.prompt[begin : begin + chunk])
    close(logits, case.tensor("last_logits"), case.tolerance["fp32_logits_abs"])
    assert request.greedy(logits, len(case.greedy)) == case.greedy


@pytest.mark.parametrize(("model_name", "case_name"), model_cases("hidden."))
def test_hidden_states_of_every_layer(model_name: str, case_name: str) -> None:
    case, model, request = started(model_name, case_name)
    tolerance = case.tolerance["fp32_hidden_abs"]
    seen: list[tuple[str, int]] = []

    class Watch(LayerHooks):
        def before_layer(self, layer: int) -> None:
            seen.append(("before", layer))

        def cache_written(self, layer: int) -> None:
            seen.append(("written", layer))

        def after_layer(self, layer: int, stream: Callable[[], torch.Tensor]) -> None:
            seen.append(("after", layer))
            close(stream(), case.tensor(f"hidden.layer{layer}"), tolerance)

    batch = Batch.pack([request.slice(case.prompt)])
    final = final_hidden(model, batch, request.workspace.arena, Watch())
    close(final, case.tensor("hidden.final_norm"), tolerance)
    close(logits_of(model, final), case.tensor("logits"), case.tolerance["fp32_logits_abs"])
    layers = range(model.config.layers)
    assert seen == [(when, layer) for layer in layers for when in ("before", "written", "after")]


@pytest.mark.parametrize(("model_name", "case_name"), model_cases("at"))
def test_checkpoints_hold_the_golden_states(model_name: str, case_name: str) -> None:
    case, model, request = started(model_name, case_name)
    positions = sorted({position for _, position, _ in case.states()})
    marks = tuple((position, request.workspace.dirty_slot()) for position in positions)
    request.forward(case.prompt, checkpoints=marks)
    for position, slot in marks:
        check_states(request, slot, case, f"at{position}", list(model.config.layer_kinds))


@every_value(model_name=TWO_TURNS, boundary={"64": 64, "128": 128, "200": 200})
def test_second_turn_resumes_from_a_checkpoint_of_the_first(model_name: str, boundary: int) -> None:
    first, second = golden(model_name, "long"), golden(model_name, "turn2")
    assert second.prompt[: len(first.prompt)] == first.prompt
    workspace = Workspace(load_model(model_name))
    earlier = Request(workspace, len(first.prompt))
    checkpoint = workspace.dirty_slot()
    earlier.forward(first.prompt, checkpoints=((boundary, checkpoint),))
    states = [*workspace.arena.views("conv"), *workspace.arena.views("ssm")]
    before = [view[checkpoint].clone() for view in states]

    shared = boundary // PAGE_TOKENS
    later = Request(workspace, len(second.prompt) + len(second.greedy))
    later.pages[:shared] = earlier.pages[:shared]
    if boundary % PAGE_TOKENS:
        # A partial page is copied on write, as its first owner may still append to it.
        for kv in workspace.arena.views("kv"):
            kv[later.pages[shared]] = kv[earlier.pages[shared]]
    later.tokens = boundary
    later.slots = [checkpoint, workspace.dirty_slot()]
    logits = later.forward(second.prompt[boundary:])
    later.slots[1] = workspace.dirty_slot()

    close(logits, second.tensor("last_logits"), second.tolerance["fp32_logits_abs"])
    assert later.greedy(logits, len(second.greedy)) == second.greedy
    for view, kept in zip(states, before, strict=True):
        assert torch.equal(view[checkpoint], kept)


@pytest.mark.parametrize("model_name", slow_behind(2, {name: name for name in MODELS + QUANTISED}))
def test_bf16_agrees_on_most_tokens(model_name: str) -> None:
    model = load_model(model_name, torch.bfloat16)
    agreed = total = 0
    share = 1.0
    for name, case_name in CASES:
        if name != model_name:
            continue
        case = golden(model_name, case_name)
        share = case.tolerance["bf16_argmax_agreement_min"]
        request = new_request(model, case)
        logits = request.forward(case.prompt)
        for token in case.greedy:
            agreed += int(logits.argmax()) == token
            total += 1
            logits = request.forward([token])
    assert agreed >= share * total, f"{agreed} of {total}"
