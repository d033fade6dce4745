"""The project's golden models are small, of every kind that tests need, and far from ties."""

import json

import pytest
from safetensors import safe_open

from tests.harness.goldens import OWN, OWN_MODELS, model_cases, reference_dir
from tests.harness.qwen35 import load_config

MOST_BYTES = 4 * 2**20


def names(model: str) -> list[str]:
    with safe_open(reference_dir(model) / "model.safetensors", "pt") as file:
        return list(file.keys())


def test_they_are_small_enough_for_the_repository() -> None:
    files = [path for path in OWN.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == set(OWN_MODELS)
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES


def test_they_are_dense_and_moe_flat_and_nested_and_one_brings_a_draft_head() -> None:
    dense, moe = (names(model) for model in OWN_MODELS)
    assert any(name.startswith("mtp.") for name in dense)
    assert any(name.startswith("model.layers.") for name in dense)
    assert any(".experts." in name for name in moe)
    assert all(name.startswith(("model.language_model.", "lm_head.")) for name in moe)
    for model in OWN_MODELS:
        assert len(set(load_config(reference_dir(model)).layer_kinds)) == 2


@pytest.mark.parametrize("model", OWN_MODELS)
def test_no_step_of_an_answer_nearly_ties(model: str) -> None:
    document = json.loads((reference_dir(model) / "golden.json").read_text())
    assert all(case["min_margin"] >= 0.05 for case in document["cases"])
    assert document["made_with"]["transformers"]


@pytest.mark.parametrize("array", ["last_logits", "hidden.", "at", "end."])
def test_each_has_cases_of_every_kind(array: str) -> None:
    assert {model for model, _ in model_cases(array)} >= set(OWN_MODELS)
    turns = {model for model, case in model_cases() if case == "turn2"}
    assert turns >= set(OWN_MODELS)
