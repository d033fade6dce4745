"""Quantised checkpoints that would be misread are rejected by the names of the parts that do not
fit."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any, Protocol

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tasuki.model.config_json import ModelConfigError
from tasuki.model.families.qwen3_5.weights import ModelWeights
from tasuki.model.quantise.checkpoint import RECIPES, quantise_folder
from tasuki.model.weights.matrix import WeightsError
from tasuki.model.weights.safetensors_folder import UnservedKind, check_kernels
from tests.harness.goldens import reference_dir
from tests.harness.qwen35 import load_config, load_weights

FILE = "model.safetensors"
MLP = "model.language_model.layers.0.mlp."
UP = f"{MLP}shared_expert.up_proj"

Tensors = dict[str, Tensor]
Change = Callable[[Tensors], object]


class Make(Protocol):
    def __call__(self, form: str, change: Change = ...) -> Path:
        """Return a folder of a quantised small-moe, changed."""


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the original folders; each is quantised once."""
    root = tmp_path_factory.mktemp("originals")

    @cache
    def original(form: str) -> Path:
        quantise_folder(reference_dir("small-moe"), root / form, RECIPES[form])
        return root / form

    return original


@pytest.fixture
def made(originals: Callable[[str], Path], tmp_path: Path) -> Make:
    def make(form: str, change: Change = lambda tensors: None) -> Path:
        target = tmp_path / form
        copytree(originals(form), target)
        tensors = load_file(target / FILE)
        change(tensors)
        save_file(tensors, target / FILE)
        return target

    return make


def load(folder: Path, device: str = "cpu") -> ModelWeights:
    return load_weights(folder, load_config(folder), torch.float32, device)


def put(name: str, tensor: Tensor) -> Change:
    return lambda tensors: tensors.update({name: tensor})


def drop(name: str) -> Change:
    return lambda tensors: tensors.pop(name)


def poison(name: str, code: int) -> Change:
    """Set one code of a tensor of 8 bits."""

    def change(tensors: Tensors) -> None:
        tensors[name].view(torch.uint8).view(-1)[5] = code

    return change


@pytest.mark.parametrize(
    ("form", "change", "named"),
    [
        ("fp8", drop(f"{UP}.weight_scale_inv"), (f"{UP}.weight has dtype F8", "weight_scale_inv")),
        ("fp8-tensor", drop(f"{UP}.weight_scale"), (f"{UP}.weight has dtype F8", "weight_scale")),
        ("nvfp4", drop(f"{UP}.weight_scale"), (f"{UP}.weight has dtype U8", "weight_scale is")),
        ("nvfp4", drop(f"{UP}.weight_scale_2"), (f"{UP}.weight has", "weight_scale_2")),
        ("nvfp4-ct", drop(f"{UP}.weight_global_scale"), (f"{UP}.weight_packed", "_global_scale")),
        # Unused scales: beside a whole weight, beside another scale, and AWQ's.
        (
            "fp8",
            put(f"{MLP}gate.weight_scale_inv", torch.ones(1, 1)),
            (f"{MLP}gate.weight has dtype BF16", f"{MLP}gate.weight_scale_inv"),
        ),
        (
            "fp8",
            put(f"{UP}.weight_scale", torch.ones(1)),
            (f"{UP}.weight_scale (F32) is read by nobody", f"{UP}.weight (F8_E4M3)"),
        ),
        (
            "nvfp4",
            put(f"{UP}.pre_quant_scale", torch.ones(64)),
            (f"{UP}.pre_quant_scale (F32) is read by nobody", f"{UP}.weight (U8)"),
        ),
        (
            "fp8",
            put(f"{MLP}gate.input_scale", torch.ones(1)),
            (f"{MLP}gate.input_scale (F32) is read by nobody", f"{MLP}gate.weight (BF16)"),
        ),
        (
            "fp8",
            put("model.language_model.layers.9.mlp.up_proj.weight", torch.ones(2, 2).char()),
            ("layers.9.mlp.up_proj.weight (I8) is read by nobody",),
        ),
        # Invalid scales.
        (
            "fp8",
            put(f"{UP}.weight_scale_inv", torch.ones(3, 1)),
            (f"{UP}.weight has shape [48, 64]", "has [3, 1]", "would have [1, 1]"),
        ),
        (
            "nvfp4",
            put(f"{UP}.weight_scale", torch.ones(48, 3).to(torch.float8_e4m3fn)),
            ("has [48, 3], not [48, 4]",),
        ),
        (
            "fp8",
            put(f"{UP}.weight_scale_inv", torch.full((1, 1), torch.nan)),
            (f"{UP}.weight has a scale", "not finite"),
        ),
        ("nvfp4", put(f"{UP}.weight_scale_2", torch.tensor(torch.inf)), ("not finite",)),
        ("fp8", put(f"{UP}.weight_scale_inv", torch.full((1, 1), -0.5)), ("is negative",)),
        # A layer under another prefix than the model's own.
        (
            "fp8",
            put("model.layers.0.mlp.gate.weight_scale_inv", torch.ones(1, 1)),
            ("model.layers.0.mlp.gate.weight_scale_inv (F32) is read by nobody",),
        ),
        ("nvfp4-ct", put(f"{UP}.weight_global_scale", torch.zeros(1)), ("which is 0",)),
        (
            "fp8",
            put(f"{UP}.weight_scale_inv", torch.ones(1, 1, dtype=torch.uint8)),
            ("weight_scale_inv of dtype U8; BF16, F16, F32 is read there",),
        ),
        ("nvfp4", put(f"{UP}.weight_scale", torch.ones(48, 4)), ("of dtype F32; F8_E4M3",)),
        # Codes that are NaN, and codes of other formats.
        ("fp8", poison(f"{UP}.weight", 0x7F), (f"{UP}.weight is damaged", "holds NaN")),
        ("fp8", poison(f"{UP}.weight", 0xFF), (f"{UP}.weight is damaged", "holds NaN")),
        ("nvfp4", poison(f"{UP}.weight_scale", 0x7F), (f"{UP}.weight_scale holds NaN",)),
        ("fp8", put(f"{UP}.weight", torch.ones(48, 64).char()), ("has dtype I8",)),
        (
            "fp8",
            put(f"{UP}.weight", torch.ones(48, 64).to(torch.float8_e5m2)),
            (f"{UP}.weight has dtype F8_E5M2", "convert the checkpoint to BF16"),
        ),
        ("nvfp4", put(f"{UP}.weight", torch.ones(48, 30).byte()), ("wants [48, 32]",)),
    ],
)
def test_what_does_not_fit_is_named(
    form: str, change: Change, named: tuple[str, ...], made: Make
) -> None:
    folder = made(form, change)
    with pytest.raises(WeightsError) as refused:
        load(folder)
    for words in (*named, str(folder / FILE)):
        assert words in str(refused.value)


def test_experts_of_one_layer_are_stored_alike(made: Make) -> None:
    def change(tensors: Tensors) -> None:
        stem = f"{MLP}experts.3.down_proj.weight"
        tensors[stem] = tensors[stem].to(torch.bfloat16)
        del tensors[f"{stem}_scale_inv"]

    named = r"layers\.0\.mlp\.experts\.3\.down_proj\.weight is stored as plain"
    with pytest.raises(WeightsError, match=named):
        load(made("fp8", change))


@pytest.mark.parametrize(
    ("form", "suffix", "damage", "said"),
    [
        ("fp8", "weight", 0x7F, "holds NaN"),
        ("fp8", "weight_scale_inv", torch.nan, "is not finite"),
        ("nvfp4", "weight_scale", 0xFF, "holds NaN"),
        ("nvfp4", "weight_scale_2", torch.inf, "is not finite"),
    ],
)
def test_of_experts_that_are_read_as_one_the_damaged_one_is_named(
    form: str, suffix: str, damage: float, said: str, made: Make
) -> None:
    name = f"{MLP}experts.2.up_proj.{suffix}"

    def change(tensors: Tensors) -> None:
        held = tensors[name]
        coded = held.view(torch.uint8) if held.dtype is torch.float8_e4m3fn else held
        coded.view(-1)[-1:] = damage

    with pytest.raises(WeightsError, match=said) as refused:
        load(made(form, change))
    assert name.removesuffix(f".{suffix}") in str(refused.value)


@pytest.mark.parametrize("experts", [(0,), (2, 3)])
def test_scales_of_inputs_may_be_of_some_experts_alone(
    experts: tuple[int, ...], made: Make
) -> None:
    """Calibration wakes some experts and not others."""

    def change(tensors: Tensors) -> None:
        for expert in experts:
            tensors[f"{MLP}experts.{expert}.down_proj.input_scale"] = torch.ones(1)

    assert load(made("nvfp4", change)).formats == "nvfp4+plain"


def test_scales_of_inputs_and_of_the_cache_change_nothing(made: Make) -> None:
    attention = "model.language_model.layers.3.self_attn."

    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(".weight_scale_2")]:
            tensors[name.replace("weight_scale_2", "input_scale")] = torch.ones(1)
        for name in ("k_proj.k_scale", "v_proj.v_scale", "k_scale", "v_scale"):
            tensors[attention + name] = torch.tensor(0.5)

    assert load(made("nvfp4", change)).formats == "nvfp4+plain"


def test_the_draft_head_and_the_vision_tower_are_nobodys(made: Make) -> None:
    def change(tensors: Tensors) -> None:
        for stem in ("mtp.layers.0.mlp.up_proj", "model.visual.blocks.0.mlp.fc1"):
            tensors[f"{stem}.weight"] = torch.ones(2, 2).to(torch.float8_e4m3fn)
            tensors[f"{stem}.weight_scale_inv"] = torch.ones(1, 1)

        tensors["model.language_model.layers.0.position_ids"] = torch.arange(4)

    assert load(made("fp8", change)).formats == "fp8_block+plain"


@pytest.mark.parametrize("stray", ["weight_scale", "pre_quant_scale", "qweight"])
def test_a_draft_layer_that_is_read_is_read_wholly(stray: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    quantise_folder(reference_dir("small-dense"), made, RECIPES["fp8"])
    tensors = load_file(made / FILE)
    name = f"mtp.layers.0.mlp.up_proj.{stray}"
    save_file(tensors | {name: torch.ones(1)}, made / FILE)
    config = load_config(made)
    assert load(made).formats == "fp8_block+plain"
    with pytest.raises(WeightsError, match=rf"{name} \(F32\) is read by nobody"):
        load_weights(made, replace(config, draft_layers=1), torch.float32)


def configured(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] |= fields
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"quant_method": "gptq"}, "quantization_config.quant_method is 'gptq'"),
        ({"quant_method": None}, "quant_method is None"),
        ({"fmt": "e5m2"}, "quantization_config.fmt is 'e5m2'"),
        ({"weight_block_size": [64, 64]}, "weight_block_size is [64, 64]"),
        ({"activation_scheme": "sometimes"}, "activation_scheme is 'sometimes'"),
        ({"transform_config": {"config_groups": {"R1": {}}}}, "transform_config turns"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config.format is"),
        (
            {"config_groups": {"g": {"weights": {"block_structure": [64, 64]}}}},
            "config_groups.g.weights.block_structure is [64, 64]",
        ),
    ],
)
def test_what_no_tensor_would_show_is_refused_by_the_config(
    fields: dict[str, Any], named: str, made: Make
) -> None:
    folder = made("fp8")
    load(folder)
    configured(folder, **fields)
    with pytest.raises(ModelConfigError) as refused:
        load(folder)
    assert named in str(refused.value) and str(folder / "config.json") in str(refused.value)


def test_static_inputs_need_their_scale(made: Make) -> None:
    folder = made("fp8-tensor")
    configured(folder, activation_scheme="static")
    with pytest.raises(WeightsError, match=r"linear_attn\.in_proj_qkv\.input_scale is missing"):
        load(folder)


@pytest.mark.parametrize("said", [{"modules_to_not_convert": []}, {"ignore": ["re:.*"]}])
def test_lists_of_names_decide_nothing(said: dict[str, Any], made: Make) -> None:
    folder = made("mixed")
    configured(folder, quant_method="fp8", **said)
    assert load(folder).formats == "fp8_tensor+nvfp4+plain"


@pytest.mark.parametrize("form", RECIPES)
def test_a_gpu_takes_codes_where_it_multiplies_them_and_refuses_before_it_reads(
    form: str, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, device = made(form), torch.device("cuda")
    capability = (9, 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "GPU A")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    check_kernels(folder, device)
    check_kernels(reference_dir("small-moe"), device)
    capability = (8, 0)
    check_kernels(reference_dir("small-moe"), device)
    for refuse in (lambda: check_kernels(folder, device), lambda: load(folder, "cuda")):
        with pytest.raises(UnservedKind, match=r"on cuda \(GPU A\)") as refused:
            refuse()
        for words in ("is quantised (", "no kernels", "8.9", "--device cpu", "BF16"):
            assert words in str(refused.value)
    check_kernels(folder, torch.device("cpu"))


def test_a_kernel_of_plain_numbers_refuses_codes(made: Make) -> None:
    weights = load(made("fp8"))
    with pytest.raises(WeightsError, match=r"fp8_block.*reads plain numbers.*--device cpu"):
        assert weights.layers[0].mixer.out_proj.plain is None
