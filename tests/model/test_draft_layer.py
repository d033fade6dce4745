"""The draft layer's guess equals the published head's. Its entries and its carry do not depend on
the way of a prompt: whole, in chunks, token by token, or resumed at a checkpoint."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tasuki.model.config_json import ModelConfigError
from tasuki.model.drafts import NoDraftLayer
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.families.registry import with_draft_layer
from tasuki.model.forward import Batch, SequenceSlice
from tasuki.model.layer_kind import LayerKind
from tasuki.model.weights.matrix import WeightsError
from tasuki.model.weights.safetensors_folder import has_draft_layer
from tests.harness.covering import every_value
from tests.harness.goldens import (
    Request,
    Workspace,
    final_hidden,
    golden,
    load_model,
    model_cases,
    reference_dir,
)
from tests.harness.qwen35 import load_config, load_weights

CASES = model_cases("mtp_last_logits")
PROMPT = golden("small-dense", "long").prompt


def drafting_model(name: str) -> Qwen35Model:
    folder = reference_dir(name)
    config = replace(load_config(folder), draft_layers=1)
    return Qwen35Model(config, load_weights(folder, config, torch.float32))


def draft(request: Request, hidden: torch.Tensor, token: int) -> torch.Tensor:
    """Return logits after a token not forwarded yet."""
    one = SequenceSlice([token], request.tokens, request.pages, *request.slots)
    logits, _ = request.workspace.model.draft_logits(
        hidden[None], Batch.pack([one]), request.workspace.arena
    )
    return logits[0]


def close(got: torch.Tensor, expected: torch.Tensor, most: float) -> None:
    torch.testing.assert_close(got, expected, atol=most, rtol=0)


def entries(request: Request, tokens: int) -> torch.Tensor:
    """Return [2, kv_heads, positions 1 to tokens - 1, head_dim]."""
    kv = request.workspace.arena.views("kv")[-1][request.pages]
    return kv.permute(2, 1, 0, 3, 4).flatten(2, 3)[:, :, 1:tokens].clone()


def carried(request: Request) -> torch.Tensor:
    return request.workspace.arena.views("carry")[0][request.slots[0]].clone()


def naive_guess(hidden: torch.Tensor, following: list[int]) -> torch.Tensor:
    """Return logits after the last of the tokens: the published head as described, each row at the
    position of its hidden state. hidden [T, width]: final states; following [T]: the token after
    each."""
    folder = reference_dir("small-dense")
    config = load_config(folder)
    with safe_open(folder / "model.safetensors", "pt") as file:
        raw = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
    embedding = next(value for name, value in raw.items() if name.endswith("embed_tokens.weight"))

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        root = (x.square().mean(-1, keepdim=True) + config.norm_eps).rsqrt()
        return x * root * (1 + raw[f"mtp.{name}.weight"])

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ raw[f"mtp.layers.0.{name}.weight"].t()

    def turned(x: torch.Tensor) -> torch.Tensor:
        half = config.rotary_dim // 2
        rates = config.rope_theta ** (-torch.arange(half) / half)
        angles = (torch.arange(len(x))[:, None] * rates)[:, None]
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    heads, kv_heads, dim, rows = config.query_heads, config.kv_heads, config.head_dim, len(hidden)
    embedded = norm(embedding[following], "pre_fc_norm_embedding")
    x = torch.cat([embedded, norm(hidden, "pre_fc_norm_hidden")], -1) @ raw["mtp.fc.weight"].t()
    normed = norm(x, "layers.0.input_layernorm")
    q, gate = linear(normed, "self_attn.q_proj").view(rows, heads, 2 * dim).chunk(2, -1)
    k = linear(normed, "self_attn.k_proj").view(rows, kv_heads, dim)
    v = linear(normed, "self_attn.v_proj").view(rows, kv_heads, dim)
    q, k = (
        turned(norm(part, f"layers.0.self_attn.{name}_norm")) for part, name in ((q, "q"), (k, "k"))
    )
    k, v = (part.repeat_interleave(heads // kv_heads, 1) for part in (k, v))
    weights = (torch.einsum("hd,khd->hk", q[-1], k) * dim**-0.5).softmax(-1)
    mixed = torch.einsum("hk,khd->hd", weights, v) * gate[-1].sigmoid()
    x = x[-1] + linear(mixed.flatten(), "self_attn.o_proj")
    normed = norm(x, "layers.0.post_attention_layernorm")
    inner = torch.nn.functional.silu(linear(normed, "mlp.gate_proj"))
    x = x + linear(inner * linear(normed, "mlp.up_proj"), "mlp.down_proj")
    return norm(x, "norm") @ raw.get("lm_head.weight", embedding).t()


@pytest.mark.parametrize("tokens", [1, 2, 64, 65, 150])
def test_the_guess_is_that_of_a_naive_twin(tokens: int) -> None:
    model, prompt = drafting_model("small-dense"), PROMPT[:tokens]
    request = Request(Workspace(model), tokens + 1)
    request.forward(prompt[: tokens // 2 or 1])
    if tokens > 1:
        request.forward(prompt[tokens // 2 :])
    plain = Request(Workspace(load_model("small-dense")), tokens)
    batch = Batch.pack([plain.slice(prompt)])
    hidden = final_hidden(plain.workspace.model, batch, plain.workspace.arena)
    close(carried(request), hidden[-1], 2e-4)
    pending = PROMPT[tokens]
    expected = naive_guess(hidden, [*prompt[1:], pending])
    close(draft(request, carried(request), pending), expected, 1e-3)


@every_value(named={"-".join(case): case for case in CASES}, chunk={"whole": None, "67": 67})
def test_the_guess_after_a_prompt_is_the_goldens(named: tuple[str, str], chunk: int | None) -> None:
    found, (name, _) = golden(*named), named
    prompt = found.prompt
    request = Request(Workspace(drafting_model(name)), len(prompt) + 1)
    step = chunk or len(prompt)
    for start in range(0, len(prompt), step):
        logits = request.forward(prompt[start : start + step])
    assert int(logits.argmax()) == found.greedy[0]
    hidden = carried(request)
    if "hidden.final_norm" in found.arrays:
        close(hidden, found.tensor("hidden.final_norm")[-1], 2e-4)
    guess = draft(request, hidden, found.greedy[0])
    expected = found.tensor("mtp_last_logits")
    close(guess, expected, 1e-3)
    assert guess.argmax() == expected.argmax()


def test_entries_and_what_is_carried_do_not_depend_on_how_a_prompt_came_in() -> None:
    prompt, tokens = PROMPT, len(PROMPT)
    model = drafting_model("small-dense")
    whole = Request(Workspace(model), tokens)
    whole.forward(prompt)
    for cuts in ([1], [tokens - 1], [63, 64, 65], [*range(1, tokens)][:40]):
        other = Request(Workspace(model), tokens)
        bounds = [0, *sorted({cut for cut in cuts if 0 < cut < tokens}), tokens]
        for start, stop in pairwise(bounds):
            other.forward(prompt[start:stop])
        close(entries(other, tokens), entries(whole, tokens), 2e-4)
        close(carried(other), carried(whole), 2e-4)


def test_a_checkpoint_inside_a_prompt_resumes_with_what_it_carries() -> None:
    prompt, tokens, mark = PROMPT, len(PROMPT), 64
    model = drafting_model("small-dense")
    assert tokens > mark + 1
    whole = Request(Workspace(model), tokens)
    kept = whole.workspace.dirty_slot()
    whole.forward(prompt, ((mark, kept),))
    expected = entries(whole, tokens)
    kv = whole.workspace.arena.views("kv")[-1]
    own = kv[whole.pages[1:]]
    kv[whole.pages[1:]] = torch.full_like(own, torch.nan)
    resumed = SequenceSlice(prompt[mark:], mark, whole.pages, kept, whole.workspace.dirty_slot())
    whole.workspace.forward(resumed)
    close(entries(whole, tokens), expected, 2e-4)


def test_without_a_draft_layer_nothing_is_kept_and_nothing_computed() -> None:
    model = load_model("small-dense")
    layout = Workspace(model).arena.layout
    assert model.weights.draft is None and layout.draft_layers == 0
    assert LayerKind.DRAFT not in layout.layers
    # Weights without a draft layer over an arena with one: refused, not half written.
    config = replace(model.config, draft_layers=1)
    mixed = Qwen35Model(config, model.weights)
    with pytest.raises(NoDraftLayer, match="--draft-layer off"):
        Request(Workspace(mixed), 3).forward([1, 2, 3])


def test_a_checkpoint_says_by_its_tensors_whether_it_drafts(tmp_path: Path) -> None:
    assert has_draft_layer(reference_dir("small-dense"))
    assert not has_draft_layer(reference_dir("small-moe"))
    assert not has_draft_layer(tmp_path), "there are no weights to look at"
    for name in ("mtp.layers.1.mlp.up_proj.weight", "mtp.embed_tokens.weight"):
        save_file({name: torch.zeros(2)}, tmp_path / "model.safetensors")
        with pytest.raises(WeightsError, match=rf"{name} .*--draft-layer off"):
            has_draft_layer(tmp_path)


def test_an_index_says_it_without_opening_a_file(tmp_path: Path) -> None:
    (tmp_path / "model-1.safetensors").write_bytes(b"")
    for name, drafts in (("mtp.norm.weight", True), ("model.norm.weight", False)):
        index = {"weight_map": {name: "model-1.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        assert has_draft_layer(tmp_path) is drafts


def test_a_draft_layer_that_lacks_its_first_tensor_is_refused_and_not_left_out(
    tmp_path: Path,
) -> None:
    folder = copied(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["mtp.fc.weight"]
    save_file(tensors, folder / "model.safetensors")
    config = with_draft_layer(load_config(folder), str(folder), "auto")
    assert config.draft_layers == 1
    with pytest.raises(WeightsError, match=r"mtp\.fc\.weight is missing"):
        load_weights(folder, config, torch.float32)


@pytest.mark.parametrize(
    ("field", "value"), [("mtp_num_hidden_layers", 2), ("mtp_use_dedicated_embeddings", True)]
)
def test_a_config_that_says_more_than_its_tensors_show_is_refused(
    field: str, value: object, tmp_path: Path
) -> None:
    folder = copied(tmp_path)
    raw = json.loads((folder / "config.json").read_text())
    raw.get("text_config", raw)[field] = value
    (folder / "config.json").write_text(json.dumps(raw))
    config = load_config(folder)
    with pytest.raises(ModelConfigError, match=rf"{field} is .*--draft-layer off"):
        with_draft_layer(config, str(folder), "auto")
    assert not with_draft_layer(config, str(folder), "off").draft_layers


def copied(tmp_path: Path) -> Path:
    return Path(copytree(reference_dir("small-dense"), tmp_path / "copy"))
