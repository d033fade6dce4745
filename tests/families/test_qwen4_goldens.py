"""Every golden case of Qwen4-Exp: logits, states, index rows and tokens, however a prompt is cut.
Unowned memory is NaN throughout."""

import json
from collections.abc import Callable
from functools import cache

import pytest
import torch

from tasuki.model.families.qwen4_exp.stack.model import Qwen4ExpModel
from tasuki.model.forward import LayerHooks
from tasuki.model.layer_kind import LayerKind
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.covering import every_value, slow_behind
from tests.harness.goldens import Golden, golden
from tests.harness.qwen4_models import FOLDER, OwnSequence, load_model, needs_goldens

NAMES = (
    [case["name"] for case in json.loads((FOLDER / "golden.json").read_text())["cases"]]
    if FOLDER.is_dir()
    else []
)
CASES = {name: name for name in NAMES}
LONG = {name: name for name in NAMES if name in ("long", "turn2")}


@cache
def model() -> Qwen4ExpModel:
    return load_model(FOLDER)


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    assert got.shape == want.shape
    difference = float((got.float() - want).abs().max()) if got.numel() else 0.0
    assert difference <= tolerance, f"off by {difference}, allowed {tolerance}"


def check_states(sequence: OwnSequence, slot: int, case: Golden, prefix: str) -> None:
    """Compare one slot, and the pages where the golden has them."""
    config, tolerance = sequence.model.config, case.tolerance
    for layer, kind in enumerate(config.layer_kinds):
        own, name = sequence.views[layer], f"{prefix}.layer{layer}"
        if kind is LayerKind.GDN:
            close(own["conv"][slot], case.tensor(f"{name}.conv"), tolerance["fp32_conv_abs"])
            recurrent = case.tensor(f"{name}.recurrent").transpose(1, 2)
            close(own["ssm"][slot], recurrent, tolerance["fp32_recurrent_abs"])
            if config.table_at(layer) is not None:
                window = case.tensor(f"{name}.ple_conv")
                close(own["ple_window"][slot], window, tolerance["fp32_conv_abs"])
            continue
        window = case.tensor(f"{name}.index_window")
        close(own["index_window"][slot], window, tolerance["fp32_index_abs"])
        if f"{name}.index_keys" in case.arrays:
            keys = case.tensor(f"{name}.index_keys")
            rows = own["index"][sequence.pages].flatten(0, 1)[: len(keys)]
            close(rows, keys, tolerance["fp32_index_abs"])
        if f"{name}.key" in case.arrays:
            pages = own["kv"][sequence.pages].permute(2, 1, 0, 3, 4).flatten(2, 3)
            for side, part in zip(pages, ("key", "value"), strict=True):
                want = case.tensor(f"{name}.{part}")
                close(side[:, : want.shape[1]], want, 2e-4)


def assert_golden(case: Golden, chunk: int) -> None:
    sequence = OwnSequence(model())
    for begin in range(0, len(case.prompt), chunk):
        logits = sequence.forward(case.prompt[begin : begin + chunk])
    close(logits, case.tensor("last_logits"), case.tolerance["fp32_logits_abs"])
    if f"at{len(case.prompt)}.layer0.conv" in case.arrays:
        check_states(sequence, sequence.slots[0], case, f"at{len(case.prompt)}")
    if "mtp_last_logits" in case.arrays:
        drafted = sequence.drafted(case.greedy[0])
        close(drafted, case.tensor("mtp_last_logits"), case.tolerance["fp32_logits_abs"])
    assert sequence.greedy(logits, len(case.greedy)) == case.greedy
    if "end.layer0.conv" in case.arrays:
        check_states(sequence, sequence.slots[0], case, "end")


@every_value(name=CASES, chunk={"fused": 1000, "37": 37, "64": 64})
def test_each_case_in_chunks(name: str, chunk: int) -> None:
    assert_golden(golden("qwen4-exp-tiny", name), chunk)


@pytest.mark.parametrize("name", slow_behind(1, LONG))
def test_each_token_alone(name: str) -> None:
    assert_golden(golden("qwen4-exp-tiny", name), 1)


@pytest.mark.parametrize("name", [name for name in NAMES if name in ("three", "page")])
def test_streams_of_every_layer(name: str) -> None:
    case = golden("qwen4-exp-tiny", name)

    class Watch(LayerHooks):
        def after_layer(self, layer: int, stream: Callable[[], torch.Tensor]) -> None:
            if layer < model().config.layers:
                want = case.tensor(f"hidden.layer{layer}")
                close(stream(), want, case.tolerance["fp32_hidden_abs"])

    OwnSequence(model()).forward(case.prompt, hooks=Watch())


@pytest.mark.parametrize("name", [name for name in NAMES if name in ("page", "long", "turn2")])
def test_checkpoints_hold_the_golden_states(name: str) -> None:
    case = golden("qwen4-exp-tiny", name)
    marks = sorted({position for _, position, _ in case.states()})
    sequence = OwnSequence(model())
    sequence.forward(case.prompt, checkpoints=[(at, 2 + row) for row, at in enumerate(marks)])
    for row, at in enumerate(marks):
        check_states(sequence, 2 + row, case, f"at{at}")


@needs_goldens
def test_last_queries_see_the_golden_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice itself is compared, not its effect alone."""
    from tasuki.model.families.qwen4_exp.sparse import attention

    seen: list[list[int]] = []
    of_many = attention.seen_tokens

    def watch(*args: object) -> torch.Tensor:
        mask = of_many(*args)  # type: ignore[arg-type]
        seen.append(mask[-1].nonzero()[:, 0].tolist())
        return mask

    monkeypatch.setattr(attention, "seen_tokens", watch)
    document = json.loads((FOLDER / "golden.json").read_text())
    for entry in document["cases"]:
        if len(entry["prompt"]) > PAGE_TOKENS:
            seen.clear()
            OwnSequence(model()).forward(entry["prompt"])
            assert seen == list(entry["last_query_sees"].values())
