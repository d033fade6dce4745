"""A block drafter over pages equals its naive twin, in stored keys and values and in proposals. Its
reader refuses by name what it does not compute."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tasuki.model.config_json import ModelConfigError
from tasuki.model.drafter.model import BlockDraftedModel
from tasuki.model.drafter.reader import read_drafter, with_drafter
from tasuki.model.drafter.weights import drafter_bytes, load_drafter
from tasuki.model.drafts import DraftStart, draft_tokens
from tasuki.model.families.registry import config_of, load_config, published_or_folder
from tasuki.model.forward import SequenceSlice
from tasuki.model.ops.attention.page_rows import read_pages
from tasuki.model.ops.row_room import RowRoom
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.weights.matrix import WeightsError
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.block_drafters import (
    CONFIG,
    MODEL,
    NaiveDrafter,
    drafted_model,
    published,
    random_tensors,
    streams_of,
    write_drafter,
)
from tests.harness.goldens import Request, Workspace, golden, reference_dir
from tests.harness.qwen4_models import odd_raw

TOKENS = golden(MODEL, "long").prompt
TOLERANCE = 2e-4
GREEDY = SamplingParams(max_new_tokens=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter"))


@pytest.fixture(scope="module")
def model(folder: Path) -> BlockDraftedModel:
    return drafted_model(folder)


def start(request: Request, token: int, count: int) -> DraftStart:
    nothing = torch.empty(0)
    place = (token, request.tokens, nothing, request.pages, request.slots[0])
    return DraftStart(*place, GREEDY, count)


def stored(arena: Arena, layer: int, request: Request) -> list[torch.Tensor]:
    """Return the drafter's keys and values of a request, each [heads, tokens, dim]."""
    kv = arena.view(layer, "kv")
    found = read_pages(kv, torch.tensor(request.pages), torch.float32, RowRoom())
    return [rows[:, : request.tokens] for rows in found]


@pytest.mark.parametrize("chunk", [1000, 64, 37])
def test_stored_keys_and_values_equal_the_twins(
    folder: Path, model: BlockDraftedModel, chunk: int
) -> None:
    naive, request = NaiveDrafter(folder), Request(Workspace(model), len(TOKENS))
    for begin in range(0, len(TOKENS), chunk):
        request.forward(TOKENS[begin : begin + chunk])
    context = naive.context(streams_of(TOKENS))
    for layer in range(CONFIG["num_hidden_layers"]):
        for got, want in zip(
            stored(request.workspace.arena, model.config.layers + layer, request),
            naive.keys_values(layer, context, 0),
            strict=True,
        ):
            torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("count", [1, 4, 7])
def test_proposals_equal_the_twins(folder: Path, model: BlockDraftedModel, count: int) -> None:
    """Two sequences of unequal lengths in one pass, at both sides of a page's end."""
    naive, workspace = NaiveDrafter(folder), Workspace(model)
    for lengths in ((1, 200), (63, 64), (65, 128)):
        requests = [Request(workspace, length + 8) for length in lengths]
        for request, length in zip(requests, lengths, strict=True):
            request.forward(TOKENS[:length])
        starts = [start(one, TOKENS[one.tokens - 1] ^ 3, count) for one in requests]
        before = workspace.arena.bytes.clone()
        got = model.block_logits(workspace.arena, starts)
        want = torch.cat(
            [
                naive.logits(streams_of(TOKENS[: one.position]), one.token, one.count)
                for one in starts
            ]
        )
        torch.testing.assert_close(got, want, atol=TOLERANCE * 10, rtol=0)
        drafts = draft_tokens(model, workspace.arena, starts)
        assert [token for one in drafts for token in one] == want.argmax(-1).tolist()
        assert torch.equal(workspace.arena.bytes, before), "a proposal wrote"


def test_drafts_are_only_of_the_tokens_allowed(folder: Path) -> None:
    ids = torch.arange(7, 320, 3)
    model = drafted_model(folder, ids=ids)
    request = Request(Workspace(model), len(TOKENS))
    request.forward(TOKENS[:100])
    wanted = start(request, 5, 7)
    got = model.block_logits(request.workspace.arena, [wanted])
    want = NaiveDrafter(folder).logits(streams_of(TOKENS[:100]), 5, 7)
    torch.testing.assert_close(got[:, ids], want[:, ids], atol=TOLERANCE * 10, rtol=0)
    assert torch.equal(got.isfinite().nonzero()[:, 1].unique(), ids)
    assert set(draft_tokens(model, request.workspace.arena, [wanted])[0]) <= set(ids.tolist())


def test_verified_tokens_store_what_a_prompt_stores(model: BlockDraftedModel) -> None:
    """Rejected tokens' rows are written over by the tokens in their place."""
    verified, whole = (Request(Workspace(model), len(TOKENS)) for _ in range(2))
    verified.forward(TOKENS[:100])
    wrong = [token ^ 1 for token in TOKENS[103:108]]
    item = SequenceSlice(
        *([*TOKENS[100:103], *wrong], 100, verified.pages, verified.slots[0], None), stepped=True
    )
    verified.workspace.forward(item)
    verified.forward(TOKENS[100:140])
    whole.forward(TOKENS[:140])
    for layer in range(CONFIG["num_hidden_layers"]):
        layer += model.config.layers
        for got, want in zip(
            stored(verified.workspace.arena, layer, verified),
            stored(whole.workspace.arena, layer, whole),
            strict=True,
        ):
            torch.testing.assert_close(got, want, atol=TOLERANCE, rtol=0)


def test_fp8_rows_hold_the_drafters_keys_too(folder: Path, model: BlockDraftedModel) -> None:
    workspace = Workspace(model, cache_dtype="float32", kv_dtype="fp8")
    request = Request(workspace, len(TOKENS))
    request.forward(TOKENS)
    context = NaiveDrafter(folder).context(streams_of(TOKENS))
    want = NaiveDrafter(folder).keys_values(0, context, 0)
    for got, exact in zip(stored(workspace.arena, model.config.layers, request), want, strict=True):
        largest = exact.abs().amax(-1, keepdim=True)
        # The streams follow rounded keys of the model itself, so bounds are wide.
        assert ((got - exact).abs() / largest).mean() < 0.1
        assert (got - exact).abs().max() > 0


def test_the_published_shape_and_its_bytes(tmp_path: Path) -> None:
    """Sums by hand of DFlash for Qwen3.5-9B: 20 KiB a token, in blocks as long as the model's."""
    raw = published()
    (tmp_path / "config.json").write_text(json.dumps(raw))
    plain = published_or_folder("9b")
    model = with_drafter(plain, str(tmp_path))
    shape = model.drafter
    assert shape is not None and shape.most_drafts == 15
    assert shape.target_layers == (1, 8, 15, 22, 29)
    dtypes = ("bfloat16", "bfloat16", "float32")
    assert with_drafter(plain, None) is plain
    own, layout = plain.cache_layout(*dtypes), model.cache_layout(*dtypes)
    assert layout.layers[: len(own.layers)] == own.layers and layout.slot_bytes == own.slot_bytes
    assert layout.block_bytes == own.block_bytes == 8 * 2 * 64 * 128 * 2
    assert len(layout.regions) == len(own.regions) + 5 == 13
    assert (layout.page_bytes - own.page_bytes) / PAGE_TOKENS == 20 * 1024
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288
    norms = 5 * (2 * 4096 + 2 * 128) + 2 * 4096
    assert drafter_bytes(shape, torch.bfloat16) == 2 * (5 * layer + 5 * 4096**2) + 4 * norms


Change = Callable[[dict[str, Any]], None]


def put(name: str, value: object) -> Change:
    return lambda raw: raw.update({name: value})


def put_own(name: str, value: object) -> Change:
    return lambda raw: raw.update(dflash_config=raw["dflash_config"] | {name: value})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (put("hidden_size", 128), "hidden_size is 128, and --model has 64"),
        (put("vocab_size", 4000), "vocab_size is 4000, and --model has 320"),
        (put("num_target_layers", 32), "num_target_layers is 32, and --model has 4"),
        (put("architectures", ["LlamaForCausalLMEagle3"]), "architectures is .*DFlashDraftModel"),
        (put("model_type", "llama"), "model_type is 'llama'; only 'qwen3'"),
        (put("attention_bias", True), "attention_bias is True"),
        (put("use_sliding_window", True), "use_sliding_window is True"),
        (put("is_causal", True), "is_causal is True"),
        (put("output_multiplier", 2.0), "output_multiplier is 2.0"),
        (put_own("input_embedding_scale", 8.0), "dflash_config.input_embedding_scale is 8.0"),
        (put("layer_types", ["full_attention", "sliding_attention"]), "layer_types is .*sliding"),
        (put("rope_scaling", {"rope_type": "yarn"}), "rope_scaling is"),
        (put("rope_parameters", {"rope_type": "yarn"}), "rope_parameters.rope_type is 'yarn'"),
        (put("num_attention_heads", 5), "no multiple of num_key_value_heads"),
        (put("head_dim", 31), "head_dim is 31"),
        (put("block_size", 1), "block_size is 1"),
        (put("dflash_config", None), "dflash_config is missing"),
        (put_own("mask_token_id", 320), "dflash_config.mask_token_id is 320; .* 0 to 319"),
        (put_own("mask_token_id", None), "dflash_config.mask_token_id is None"),
        (put_own("target_layer_ids", [0, 4]), r"target_layer_ids is \[0, 4\]; .* 0 to 3"),
        (put_own("target_layer_ids", [2, 1]), "target_layer_ids .* ascending"),
        (put_own("target_layer_ids", []), "target_layer_ids"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    tmp_path: Path, change: Change, named: str
) -> None:
    raw = dict(CONFIG)
    change(raw)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ModelConfigError, match=named):
        read_drafter(tmp_path, load_config(reference_dir(MODEL)))


def test_a_block_has_the_size_in_either_place(tmp_path: Path) -> None:
    model, raw = load_config(reference_dir(MODEL)), dict(CONFIG)
    found = []
    for change in (put("block_size", 5), put_own("block_size", 6), put("block_size", None)):
        change(raw)
        (tmp_path / "config.json").write_text(json.dumps(raw))
        found.append(read_drafter(tmp_path, model).block)
    assert found == [5, 6, 6]


def test_files_of_another_layout_are_refused_by_name(tmp_path: Path) -> None:
    model = load_config(reference_dir(MODEL))
    with pytest.raises(ModelConfigError, match="cannot be read"):
        read_drafter(tmp_path / "none", model)
    write_drafter(tmp_path)
    shape = read_drafter(tmp_path, model)
    file, found = tmp_path / "model.safetensors", random_tensors(CONFIG)
    save_file(found | {"lm_head.weight": torch.zeros(320, 64)}, file)
    with pytest.raises(WeightsError, match=r"lm_head\.weight is read by nobody"):
        load_drafter(tmp_path, shape, torch.float32)
    save_file(found | {"fc.weight": torch.zeros(64, 64)}, file)
    with pytest.raises(WeightsError, match=r"fc\.weight"):
        load_drafter(tmp_path, shape, torch.float32)
    del found["norm.weight"]
    save_file(found, file)
    with pytest.raises(WeightsError, match=r"norm\.weight is missing"):
        load_drafter(tmp_path, shape, torch.float32)


def test_a_target_of_several_streams_is_refused(tmp_path: Path) -> None:
    """Qwen4-Exp has several residual streams a token, and such a drafter reads one."""
    model = config_of(odd_raw())
    sizes = {"hidden_size": model.hidden, "vocab_size": model.vocab}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | sizes))
    with pytest.raises(ModelConfigError, match=f"--model has {model.stream_width}: its residual"):
        read_drafter(tmp_path, model)
