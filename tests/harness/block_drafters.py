"""Block drafters for tests: folders of random ones for a golden model, and a naive twin.

The twin knows no pages, no batches and no operators of the product. It reads the files itself, and
computes every pass anew from the streams of all earlier tokens, in float32.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tasuki.model.config import ModelConfig
from tasuki.model.drafter.model import BlockDraftedModel, beside_drafter
from tasuki.model.drafter.reader import with_drafter
from tasuki.model.drafts import DraftHead
from tasuki.model.families.loading import build_model, load_weights
from tasuki.model.families.registry import load_config
from tasuki.model.forward import NullHooks
from tasuki.model.ops.attention.page_rows import read_pages
from tasuki.model.ops.row_room import RowRoom
from tasuki.pycache.arena import run_copies
from tests.harness.engines import Lone
from tests.harness.goldens import Request, Workspace, load_model, reference_dir

MODEL = "small-dense"
CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 320,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "layer_types": ["full_attention"] * 2,
    "block_size": 8,
    "num_target_layers": 4,
    "dflash_config": {"mask_token_id": 300, "target_layer_ids": [0, 2, 3]},
}
"""A drafter of two layers for the golden model MODEL."""


def published(**changes: object) -> dict[str, Any]:
    """Return the config of a drafter of the published shape for Qwen3.5-9B."""
    sizes = {"hidden_size": 4096, "intermediate_size": 12288, "vocab_size": 248320}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    layers = {"num_hidden_layers": 5, "num_target_layers": 32, "block_size": 16}
    own = {"mask_token_id": 248070, "target_layer_ids": [1, 8, 15, 22, 29]}
    kinds = {"layer_types": ["full_attention"] * 5, "rope_theta": 1e7, "dflash_config": own}
    return CONFIG | sizes | heads | layers | kinds | changes


def raw_for(model: ModelConfig) -> dict[str, Any]:
    """Return the config of a small drafter for any model."""
    own = {"mask_token_id": model.vocab - 3, "target_layer_ids": [0, model.layers - 2]}
    sizes = {"hidden_size": model.hidden, "vocab_size": model.vocab}
    return CONFIG | sizes | {"num_target_layers": model.layers, "dflash_config": own}


def random_tensors(raw: Mapping[str, Any], seed: int = 7) -> dict[str, Tensor]:
    """Return a drafter's tensors by their published names, float32."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, dim = raw["hidden_size"], raw["intermediate_size"], raw["head_dim"]
    queries, keys = (raw[f"num_{kind}_heads"] * dim for kind in ("attention", "key_value"))
    read = len(raw["dflash_config"]["target_layer_ids"])
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (hidden, read * hidden),
        "hidden_norm": (hidden,),
        "norm": (hidden,),
    }
    for layer in range(raw["num_hidden_layers"]):
        own: dict[str, tuple[int, ...]] = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_norm": (dim,),
            "self_attn.k_norm": (dim,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in own.items()}
    found = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        centred = 1 + 0.2 * noise if len(shape) == 1 else noise / math.sqrt(shape[-1])
        found[f"{name}.weight"] = centred
    return found


def write_drafter(folder: Path, raw: Mapping[str, Any] = CONFIG, seed: int = 7) -> Path:
    """Write a drafter of random weights, and return its folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file(random_tensors(raw, seed), folder / "model.safetensors")
    return folder


def drafted_model(folder: Path, model: str = MODEL, ids: Tensor | None = None) -> BlockDraftedModel:
    """Return a golden model in float32 with the drafter in a folder beside it. ids: the token ids
    allowed as drafts; None: all."""
    config = with_drafter(load_config(reference_dir(model)), str(folder))
    weights = load_weights(reference_dir(model), config, torch.float32)
    drafts = DraftHead.of(weights.head, ids)
    found = beside_drafter(build_model(config, weights), str(folder), drafts)
    assert isinstance(found, BlockDraftedModel)
    return found


@dataclass
class AllStreams(NullHooks):
    """Hooks to keep the residual stream after every layer, [T, hidden]."""

    found: list[Tensor] = field(default_factory=list)

    def after_layer(self, layer: int, stream: Callable[[], Tensor]) -> None:
        self.found.append(stream().clone())


def streams_of(tokens: Sequence[int], model: str = MODEL) -> list[Tensor]:
    """Return the target's stream after each layer, [tokens, hidden], from one forward without a
    drafter."""
    hooks = AllStreams()
    request = Request(Workspace(load_model(model)), len(tokens))
    request.workspace.forward(request.slice(list(tokens)), hooks=hooks)
    return hooks.found


class NaiveDrafter:
    """A twin of the drafter in a folder, for a golden model."""

    def __init__(self, folder: Path, model: str = MODEL) -> None:
        self.raw = json.loads((folder / "config.json").read_text())
        self._weights = load_file(folder / "model.safetensors")
        target = load_file(reference_dir(model) / "model.safetensors")
        (name,) = [name for name in target if name.endswith("embed_tokens.weight")]
        self.embedding = target[name].float()
        self._eps = self.raw["rms_norm_eps"]

    def context(self, streams: Sequence[Tensor]) -> Tensor:
        """Return the context row of each token, [n, hidden]. streams: of all the target's layers,
        each [n, hidden]."""
        read = [streams[layer] for layer in self.raw["dflash_config"]["target_layer_ids"]]
        return self._norm(torch.cat(read, dim=-1) @ self._weight("fc").T, "hidden_norm")

    def keys_values(self, layer: int, rows: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of rows at positions first, .., each [kv heads, n, dim]."""
        own = f"layers.{layer}.self_attn"
        k = self._heads(rows @ self._weight(f"{own}.k_proj").T)
        v = self._heads(rows @ self._weight(f"{own}.v_proj").T)
        return self._turned(self._norm(k, f"{own}.k_norm"), first), v

    def logits(self, streams: Sequence[Tensor], token: int, count: int) -> Tensor:
        """Return logits [count, vocab] of the tokens after `token`, which follows the tokens of the
        streams."""
        context = self.context(streams)
        before = len(context)
        ids = [token, *[self.raw["dflash_config"]["mask_token_id"]] * count]
        x = self.embedding[ids]
        for layer in range(self.raw["num_hidden_layers"]):
            own = f"layers.{layer}"
            normed = self._norm(x, f"{own}.input_layernorm")
            q = self._heads(normed @ self._weight(f"{own}.self_attn.q_proj").T)
            q = self._turned(self._norm(q, f"{own}.self_attn.q_norm"), before)
            sides = (
                self.keys_values(layer, context, 0),
                self.keys_values(layer, normed, before),
            )
            k, v = (torch.cat(rows, dim=1) for rows in zip(*sides, strict=True))
            each = []
            for head in range(len(q)):
                group = head * len(k) // len(q)
                scores = q[head] @ k[group].T / math.sqrt(q.shape[-1])
                each.append(scores.softmax(-1) @ v[group])
            x = x + torch.cat(each, dim=-1) @ self._weight(f"{own}.self_attn.o_proj").T
            normed = self._norm(x, f"{own}.post_attention_layernorm")
            gate = normed @ self._weight(f"{own}.mlp.gate_proj").T
            up = normed @ self._weight(f"{own}.mlp.up_proj").T
            inner = gate * torch.sigmoid(gate) * up
            x = x + inner @ self._weight(f"{own}.mlp.down_proj").T
        return self._norm(x, "norm")[1:] @ self.embedding.T

    def assert_made(self, engine: Lone, tokens: Sequence[int]) -> int:
        """Check the pages before the engine's cached state: they hold the twin's keys and values.
        Return the number of cached tokens."""
        cache, arena = engine.engine._cache, engine.parts.arena
        allocation = cache.allocate(
            np.asarray(tokens, dtype=np.int32), capacity_tokens=len(tokens), working_slots=1
        )
        assert allocation is not None
        run_copies(arena, cache.take_copies())
        kept, pages = allocation.cached_tokens, torch.tensor(allocation.pages.tolist())
        if kept:
            context = self.context(streams_of(tokens[:kept]))
            first = engine.parts.model_config.layers
            for layer in range(self.raw["num_hidden_layers"]):
                view = arena.view(first + layer, "kv")
                got = read_pages(view, pages, torch.float32, RowRoom())
                for rows, want in zip(got, self.keys_values(layer, context, 0), strict=True):
                    torch.testing.assert_close(rows[:, :kept], want, atol=2e-4, rtol=0)
        cache.release(allocation)
        return kept

    def _weight(self, name: str) -> Tensor:
        return self._weights[f"{name}.weight"]

    def _heads(self, rows: Tensor) -> Tensor:
        """Return rows [n, heads * dim] as [heads, n, dim]."""
        return rows.view(len(rows), -1, self.raw["head_dim"]).transpose(0, 1)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self._eps).sqrt() * self._weight(name)

    def _turned(self, x: Tensor, first: int) -> Tensor:
        """Return x [heads, n, dim] rotated for positions first, .. by pairs of the two halves."""
        dim = x.shape[-1]
        speeds = self.raw["rope_theta"] ** (-torch.arange(0, dim, 2).float() / dim)
        angles = torch.arange(first, first + x.shape[1]).float()[:, None] * speeds
        low, high = x.chunk(2, dim=-1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
