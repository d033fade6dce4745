"""Kimi Linear run on bare views, without an arena: one sequence at a time, unowned memory NaN.

Also random checkpoints of any shape, under published names.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tasuki.model.config_json import ConfigFile
from tasuki.model.families.kimi_linear.config import KimiConfig, Mixer
from tasuki.model.families.kimi_linear.operators import KimiBackend
from tasuki.model.families.kimi_linear.reader import read_config
from tasuki.model.families.kimi_linear.stack import (
    KdaStates,
    LatentPages,
    LayerViews,
    run_layers,
)
from tasuki.model.families.kimi_linear.weights import KimiWeights, assemble
from tasuki.model.forward import Batch, LayerHooks, NullHooks, SequenceSlice
from tasuki.model.ops.linear.reference import product
from tasuki.model.ops.norm.reference import rms_norm
from tasuki.model.weights.safetensors_folder import Checkpoint
from tasuki.pycache.layout import PAGE_TOKENS

BESIDE = Path(__file__).resolve().parents[3] / "shared" / "reference" / "kimi-linear-tiny"

ODD: dict[str, Any] = {
    "model_type": "kimi_linear",
    "vocab_size": 97,
    "hidden_size": 56,
    "intermediate_size": 72,
    "num_hidden_layers": 5,
    "first_k_dense_replace": 2,
    "rms_norm_eps": 1e-5,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "kv_lora_rank": 40,
    "q_lora_rank": None,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 40,
    "mla_use_nope": True,
    "linear_attn_config": {
        "full_attn_layers": [2, 5],
        "kda_layers": [1, 3, 4],
        "head_dim": 24,
        "num_heads": 4,
        "short_conv_kernel_size": 4,
    },
    "moe_intermediate_size": 20,
    "num_experts": 6,
    "num_experts_per_token": 2,
    "num_shared_experts": 2,
    "routed_scaling_factor": 1.7,
    "model_max_length": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Shape with widths that are no powers of two, unequal numbers of heads, two shared
experts, layers in another order."""


def odd_shape(kda_dim: int, taps: int = 4) -> dict[str, Any]:
    """Return ODD with this width of a KDA head and this number of taps."""
    linear = ODD["linear_attn_config"] | {"head_dim": kda_dim, "short_conv_kernel_size": taps}
    return ODD | {"linear_attn_config": linear}


def random_tensors(raw: dict[str, Any], seed: int = 5) -> dict[str, Tensor]:
    """Return random tensors of the model under their published names, float32."""
    generator = torch.Generator().manual_seed(seed)
    hidden, linear = raw["hidden_size"], raw["linear_attn_config"]
    heads, dim, taps = linear["num_heads"], linear["head_dim"], linear["short_conv_kernel_size"]
    width, found = heads * dim, {}

    def put(name: str, *size: int) -> None:
        scale = 1.0 if len(size) == 1 else size[-1] ** -0.5
        found[name] = torch.randn(size, generator=generator) * scale

    def norm(name: str, size: int) -> None:
        found[name] = 1 + 0.2 * torch.randn(size, generator=generator)

    def swiglu(prefix: str, names: Sequence[str], inner: int) -> None:
        gate, up, down = names
        put(f"{prefix}.{gate}.weight", inner, hidden)
        put(f"{prefix}.{up}.weight", inner, hidden)
        put(f"{prefix}.{down}.weight", hidden, inner)

    published = ("gate_proj", "up_proj", "down_proj")
    put("model.embed_tokens.weight", raw["vocab_size"], hidden)
    found["model.embed_tokens.weight"] *= hidden**0.5
    put("lm_head.weight", raw["vocab_size"], hidden)
    found["lm_head.weight"] *= 4
    norm("model.norm.weight", hidden)
    for layer in range(raw["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        mixer = f"{prefix}.self_attn"
        norm(f"{prefix}.input_layernorm.weight", hidden)
        norm(f"{prefix}.post_attention_layernorm.weight", hidden)
        if layer + 1 in linear["kda_layers"]:
            for name in "qkv":
                put(f"{mixer}.{name}_proj.weight", width, hidden)
                put(f"{mixer}.{name}_conv1d.weight", width, 1, taps)
            for name in "fg":
                put(f"{mixer}.{name}_a_proj.weight", dim, hidden)
                put(f"{mixer}.{name}_b_proj.weight", width, dim)
            put(f"{mixer}.b_proj.weight", heads, hidden)
            put(f"{mixer}.dt_bias", width)
            found[f"{mixer}.dt_bias"] -= 3
            found[f"{mixer}.A_log"] = torch.rand(1, 1, heads, 1, generator=generator) * 2.7
            norm(f"{mixer}.o_norm.weight", dim)
            put(f"{mixer}.o_proj.weight", hidden, width)
        else:
            rank, common = raw["kv_lora_rank"], raw["qk_rope_head_dim"]
            own, value, count = (
                raw["qk_nope_head_dim"],
                raw["v_head_dim"],
                raw["num_attention_heads"],
            )
            put(f"{mixer}.q_proj.weight", count * (own + common), hidden)
            put(f"{mixer}.kv_a_proj_with_mqa.weight", rank + common, hidden)
            norm(f"{mixer}.kv_a_layernorm.weight", rank)
            put(f"{mixer}.kv_b_proj.weight", count * (own + value), rank)
            put(f"{mixer}.o_proj.weight", hidden, count * value)
        if layer < raw["first_k_dense_replace"]:
            swiglu(f"{prefix}.mlp", published, raw["intermediate_size"])
            continue
        moe, inner = f"{prefix}.block_sparse_moe", raw["moe_intermediate_size"]
        put(f"{moe}.gate.weight", raw["num_experts"], hidden)
        put(f"{moe}.gate.e_score_correction_bias", raw["num_experts"])
        for expert in range(raw["num_experts"]):
            swiglu(f"{moe}.experts.{expert}", ("w1", "w3", "w2"), inner)
        swiglu(f"{moe}.shared_experts", published, inner * raw["num_shared_experts"])
    return found


def write_random_kimi(folder: Path, raw: dict[str, Any]) -> dict[str, Tensor]:
    """Write a checkpoint folder of random weights, and return its tensors by published name."""
    found = random_tensors(raw)
    folder.mkdir(exist_ok=True)
    save_file(found, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return found


class KimiRun:
    """A model on views for one sequence, with four slots. Slot 0 begins as zeros and is advanced;
    the others, and all pages, are NaN until written."""

    def __init__(self, folder: Path, tokens: int, dtype: torch.dtype = torch.float32) -> None:
        torch.set_num_threads(1)
        self.config: KimiConfig = read_config(ConfigFile.load(folder))
        with Checkpoint(folder) as source:
            self.weights: KimiWeights = assemble(self.config, source, dtype)
        self.backend = KimiBackend(self.config)
        self.page_count = -(-tokens // PAGE_TOKENS)
        self.begin_again()

    def begin_again(self) -> None:
        """Forget the sequence."""
        self.tokens = 0
        self.views = [self._view(mixer) for mixer in self.config.mixers]

    def _view(self, mixer: Mixer) -> LayerViews:
        shape, dtype = self.config, self.weights.dtype
        if mixer is Mixer.LATENT:
            size = (self.page_count + 1, PAGE_TOKENS, shape.latent.row)
            return LatentPages(torch.full(size, torch.nan, dtype=dtype))
        dim = shape.kda_dim
        conv = torch.full((4, shape.conv_channels, shape.conv_width - 1), torch.nan, dtype=dtype)
        ssm = torch.full((4, shape.kda_heads, dim, dim), torch.nan)
        conv[0] = ssm[0] = 0
        return KdaStates(conv, ssm)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Sequence[int],
        checkpoints: Sequence[tuple[int, int]] = (),
        stepped: bool = False,
        hooks: LayerHooks | None = None,
    ) -> Tensor:
        """Run the next tokens of the sequence. Return the hidden states [T, hidden] after the final
        norm."""
        pages = range(self.page_count, 0, -1)
        item = SequenceSlice(token_ids, self.tokens, pages, 0, 0, checkpoints, stepped)
        batch = Batch.pack([item])
        self.tokens += len(token_ids)
        branch, residual = run_layers(
            batch.token_ids,
            self.weights,
            self.backend.bind(batch),
            self.views,
            hooks or NullHooks(),
        )
        return rms_norm(branch + residual, self.weights.norm, self.config.norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [T, vocab] float32 of hidden states [T, hidden]."""
        return product(hidden, self.weights.head).float()

    def greedy(self, logits: Tensor, steps: int) -> list[int]:
        """Return `steps` greedy tokens from the logits [vocab] after the last token. All are
        forwarded."""
        found = []
        for _ in range(steps):
            found.append(int(logits.argmax()))
            logits = self.logits(self.forward(found[-1:]))[0]
        return found

    def go_back(self, tokens: int, slot: int) -> None:
        """Make the state of `slot` the sequence's state, after this many tokens. Rows behind them
        become NaN."""
        self.tokens = tokens
        for view in self.views:
            if isinstance(view, KdaStates):
                view.conv[0], view.ssm[0] = view.conv[slot], view.ssm[slot]
            else:
                order = view.rows.flip(0)[: self.page_count]
                rows = order.flatten(0, 1)
                rows[tokens:] = torch.nan
                view.rows[1:] = rows.view(order.shape).flip(0)
