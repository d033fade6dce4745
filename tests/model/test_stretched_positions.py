"""Contexts longer than the training: under YaRN angles and logits equal transformers'.

Goldens are made by `python -m tools.goldens`. Each variant changes the position settings of
small-dense's config, under the old key and the new one.
"""

import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tasuki.model.config import DeltaNetConfig
from tasuki.model.config_json import ModelConfigError
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.forward import Batch, SequenceSlice
from tasuki.model.ops.attention.rope import RotaryAngles, rotary_cache, rotary_cache_bytes
from tests.harness.goldens import Workspace, final_hidden, logits_of, reference_dir
from tests.harness.qwen35 import config_of, load_weights

FOLDER = reference_dir("small-dense")
GOLDEN = json.loads((FOLDER / "stretched.json").read_text())
POSITIONS = torch.tensor(GOLDEN["positions"])
# Two processors' powers may differ in their last bits.
LAST_BITS = 2**-22


def raw() -> dict[str, Any]:
    config: dict[str, Any] = json.loads((FOLDER / "config.json").read_text())
    return config


def variant_config(variant: str, **changes: object) -> DeltaNetConfig:
    return config_of(raw() | GOLDEN["variants"][variant] | changes)


@pytest.fixture(scope="module")
def arrays() -> dict[str, NDArray[np.float32]]:
    with np.load(FOLDER / "stretched.npz") as found:
        return dict(found)


@pytest.mark.parametrize("variant", GOLDEN["variants"])
def test_angles_equal_transformers(variant: str, arrays: dict[str, NDArray[np.float32]]) -> None:
    frequencies, cos, sin = (
        torch.from_numpy(arrays[f"{variant}.{name}"]) for name in ("frequencies", "cos", "sin")
    )
    angles = RotaryAngles.of(variant_config(variant, head_dim=GOLDEN["head_dim"]))
    torch.testing.assert_close(angles.frequencies, frequencies, rtol=LAST_BITS, atol=0)
    off = POSITIONS[:, None] * frequencies * LAST_BITS + 1e-6
    for ours, theirs in zip(angles.table(POSITIONS), (cos, sin), strict=True):
        assert bool(((ours[:, 0] - theirs).abs() <= angles.scale * off).all())


@pytest.mark.parametrize("variant", GOLDEN["variants"])
def test_logits_equal_transformers(variant: str, arrays: dict[str, NDArray[np.float32]]) -> None:
    config = variant_config(variant)
    model = Qwen35Model(config, load_weights(FOLDER, config, torch.float32))
    workspace, prompt = Workspace(model), GOLDEN["prompt"]
    pages = workspace.pages(len(prompt))
    part = SequenceSlice(prompt, 0, pages, workspace.zero_slot(), workspace.dirty_slot())
    hidden = final_hidden(model, Batch.pack([part]), workspace.arena)
    wanted = torch.from_numpy(arrays[f"{variant}.logits"])
    got = logits_of(model, hidden[-len(wanted) :])
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-3)
    if variant == "card":
        return
    plain = torch.from_numpy(arrays["card.logits"])
    assert float((wanted - plain).abs().max()) > 0.01, "the variant changes something"


def test_no_two_variants_have_the_same_angles(arrays: dict[str, NDArray[np.float32]]) -> None:
    found = {arrays[f"{variant}.cos"].tobytes() for variant in GOLDEN["variants"]}
    assert len(found) == len(GOLDEN["variants"])


def test_a_table_holds_the_angles_of_every_position_in_the_bytes_that_are_counted() -> None:
    config = variant_config("short")
    table = rotary_cache(config, 300, torch.device("cpu"))
    cos, sin = RotaryAngles.of(config).table(torch.arange(300))
    assert torch.equal(table, torch.stack([cos[:, 0], sin[:, 0]], dim=1))
    assert table.untyped_storage().nbytes() == rotary_cache_bytes(config, 300)
    published = variant_config("card", head_dim=256)
    assert rotary_cache_bytes(published, 2**18) == 2**26


def yarn(**changes: object) -> dict[str, Any]:
    """Return a config with angles stretched four times; None removes a field."""
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e7,
        "factor": 4.0,
        "original_max_position_embeddings": 262_144,
    }
    kept = {name: value for name, value in (rope | changes).items() if value is not None}
    return raw() | {"rope_parameters": kept}


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        # Only the rotary parameters were edited, as a model's card advises.
        (yarn() | {"max_position_embeddings": 262_144}, 1_048_576),
        (yarn(factor=3.85) | {"max_position_embeddings": 262_144}, 1_009_254),
        # The longer context is stated, or the trained one is not.
        (yarn() | {"max_position_embeddings": 1_010_000}, 1_010_000),
        (yarn(original_max_position_embeddings=None), 4096),
        (raw(), 4096),
    ],
)
def test_the_longest_context_is_the_one_that_is_stated_or_follows_from_the_factor(
    config: dict[str, Any], positions: int
) -> None:
    assert config_of(config).max_position == positions


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.factor is missing"),
        (yarn(factor=0.5), "rope_parameters.factor is 0.5"),
        (yarn(factor="4"), "rope_parameters.factor is '4'"),
        (yarn(rope_theta=None), "rope_parameters.rope_theta is missing"),
        (yarn(beta_fast=1, beta_slow=2), "rope_parameters.beta_fast is 1, below beta_slow 2"),
        (yarn(attention_factor=-1.0), "rope_parameters.attention_factor is -1.0"),
        (yarn(truncate="no"), "rope_parameters.truncate is 'no'"),
        (
            yarn(original_max_position_embeddings=0.5),
            "rope_parameters.original_max_position_embeddings is 0.5",
        ),
        (yarn(full_attention={}), "rope_parameters.full_attention is for one kind of layer"),
        ({"rope_scaling": [4]}, "rope_scaling is not an object"),
        # It replaces all of rope_parameters, and transformers would guess another base.
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling.rope_theta is missing"),
        *(
            ({key: {name: kind, "factor": 4.0}}, f"{key}.{name} is '{kind}'")
            for key, name in (("rope_scaling", "type"), ("rope_parameters", "rope_type"))
            for kind in ("linear", "dynamic", "longrope", "llama3", "proportional", "su")
        ),
    ],
)
def test_what_is_not_computed_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        config_of(raw() | change, source="here")
    assert str(caught.value).startswith(f"here: {field}")
    assert "; " in str(caught.value)


def test_rotary_parameters_beside_the_text_model_s_config_are_refused() -> None:
    text = yarn()
    nested = {"model_type": "qwen3_5", "text_config": text}
    wanted = config_of(nested)
    assert wanted.yarn is not None
    same = nested | {"rope_parameters": text["rope_parameters"]}
    assert config_of(same) == wanted
    with pytest.raises(ModelConfigError, match=r"rope_scaling is beside text_config"):
        config_of(nested | {"rope_scaling": text["rope_parameters"]})
