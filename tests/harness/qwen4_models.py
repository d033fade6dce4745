"""Qwen4-Exp models for tests: the golden one, and random ones of odd sizes, over bare views."""

import json
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tasuki.model.config_json import ConfigFile
from tasuki.model.families.qwen4_exp.assembly import Assembler
from tasuki.model.families.qwen4_exp.config import Qwen4ExpConfig
from tasuki.model.families.qwen4_exp.reader import read_config
from tasuki.model.families.qwen4_exp.stack.model import Qwen4ExpModel
from tasuki.model.families.qwen4_exp.stack.plan import views_of
from tasuki.model.forward import Batch, LayerHooks, NullHooks, SequenceSlice
from tasuki.model.weights.matrix import WHOLE, Part
from tasuki.model.weights.safetensors_folder import Checkpoint
from tasuki.model.weights.source import RandomSource
from tasuki.pycache.layout import PAGE_TOKENS, LayerKind
from tests.harness.goldens import BESIDE

FOLDER = BESIDE / "qwen4-exp-tiny"


def odd_raw(**changes: object) -> dict[str, Any]:
    """Return the content of a config.json with odd sizes: three streams, blocks of 8 tokens, two
    tables, a sparse layer first."""
    return {
        "model_type": "qwen4_exp_text",
        "vocab_size": 97,
        "hidden_size": 48,
        "num_hidden_layers": 5,
        "layer_types": [
            "full_attention",
            "linear_attention",
            "indexed_attention",
            "linear_attention",
            "linear_attention",
        ],
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 40,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 48,
        "linear_conv_kernel_dim": 3,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
        "hc_count": 3,
        "hc_lowrank": 7,
        "ple_layer_ids": [5, 2],
        "ple_embed_dim": 36,
        "ple_conv_kernel_size": 3,
        "ngram_size": 4,
        "heads_per_ngram": 2,
        "ngram_vocab_size_base": 50,
        "split_ngram_parts": 3,
        "indexer_n_heads": 3,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 24,
        "indexer_budget": 16,
        "indexer_compress_ratio": 8,
        "output_gate_type": "sigmoid",
        "max_position_embeddings": 1024,
        "eos_token_id": [5, 6],
        **changes,
    }


def config_of(folder: Path, drafts: int = 1) -> Qwen4ExpConfig:
    return replace(read_config(ConfigFile.load(folder)), draft_layers=drafts)


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Qwen4ExpModel:
    """Return the model of a checkpoint folder, with its draft layer."""
    torch.set_num_threads(1)
    config = config_of(folder)
    with Checkpoint(folder) as source:
        return Qwen4ExpModel(config, Assembler(config, source, dtype).whole())


def odd_config(raw: dict[str, Any], source: str = "config") -> Qwen4ExpConfig:
    return replace(read_config(ConfigFile.of(raw, None, source)), draft_layers=1)


def random_model(raw: dict[str, Any], seed: int = 3) -> Qwen4ExpModel:
    """Return a model of random weights in float32, with a draft layer."""
    torch.set_num_threads(1)
    config = odd_config(raw)
    return Qwen4ExpModel(config, Assembler(config, RandomSource(seed), torch.float32).whole())


def bare_views(config: Qwen4ExpConfig, pages: int, slots: int) -> list[dict[str, Tensor]]:
    """Return float32 views of NaN for a model: each layer's parts, the draft layer's last."""

    def nan(*shape: int) -> Tensor:
        return torch.full(shape, torch.nan)

    views = []
    for layer, kind in enumerate((*config.layer_kinds, LayerKind.DRAFT)):
        if kind is LayerKind.GDN:
            own = {
                "conv": nan(slots, config.conv_channels, config.conv_width - 1),
                "ssm": nan(slots, config.value_heads, config.value_dim, config.key_dim),
            }
            table = config.table_at(layer)
            if table is not None:
                own["ple_window"] = nan(slots, config.stream_width, config.table_window(table))
        else:
            index = config.index
            kv = (config.kv_heads, 2, PAGE_TOKENS, config.head_dim)
            rows = (PAGE_TOKENS // index.ratio, index.dim)
            # One block has both, as in an arena.
            block = nan(pages, prod(kv) + prod(rows))
            own = {
                "kv": block[:, : prod(kv)].unflatten(1, kv),
                "index": block[:, prod(kv) :].unflatten(1, rows),
                "index_window": nan(slots, index.dim, index.ratio - 1),
            }
            if kind is LayerKind.DRAFT:
                own["carry"] = nan(slots, config.stream_width)
        views.append(own)
    return views


class BareArena:
    def __init__(self, config, pages, slots):
        from types import SimpleNamespace as N

        self.views_ = bare_views(config, pages, slots)
        self.layout = N(
            draft_layers=1,
            layers=[N(page=[N(name=n) for n in own], slot=[]) for own in self.views_],
        )

    def view(self, layer, name):
        return self.views_[layer][name]


class OwnSequence:
    """One sequence over bare views: pages in falling order, two slots in turn."""

    def __init__(self, model: Qwen4ExpModel, pages: int = 8, slots: int = 4) -> None:
        self.model = model
        self.arena = BareArena(model.config, pages, slots)
        self.views = views_of(self.arena)
        self.pages = list(range(pages - 1, -1, -1))
        self.slots = [0, 1]
        self.tokens: list[int] = []
        for own in self.views:
            for name, view in own.items():
                if name not in ("kv", "index"):
                    view[0] = 0

    def slice(self, tokens: Sequence[int], **others: Any) -> SequenceSlice:
        """Return a slice of the next tokens, that reads one slot and writes the other."""
        context = self.model.config.ids_before
        before = self.tokens[-context:] if context else []
        values: dict[str, Any] = {"ids_before": before, "write_slot": self.slots[1], **others}
        return SequenceSlice(list(tokens), len(self.tokens), self.pages, self.slots[0], **values)

    def forward(
        self,
        tokens: Sequence[int],
        hooks: LayerHooks | None = None,
        checkpoints: Sequence[tuple[int, int]] = (),
    ) -> Tensor:
        """Forward the next tokens. Return the logits [vocab] after the last one."""
        item = self.slice(tokens, checkpoints=checkpoints)
        logits = self.model.forward(Batch.pack([item]), self.arena, hooks or NullHooks())
        self.slots.reverse()
        self.tokens += tokens
        return logits[0]

    def greedy(self, logits: Tensor, steps: int) -> list[int]:
        """Return greedy tokens; the last one is forwarded too."""
        found = []
        for _ in range(steps):
            found.append(int(logits.argmax()))
            logits = self.forward([found[-1]])
        return found

    def drafted(self, token: int) -> Tensor:
        """Return the draft layer's logits [vocab] after a token that follows the sequence."""
        hidden = self.model.carried(self.arena)[self.slots[:1]]
        item = self.slice([token], write_slot=None)
        return self.model.draft_logits(hidden, Batch.pack([item]), self.arena)[0][0]


class _Recorder(RandomSource):
    """Random tensors that are kept by name."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.tensors: dict[str, Tensor] = {}

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        found = super().read(name, shape, dtype, part)
        self.tensors[name] = found
        return found


def write_model(folder: Path, raw: dict[str, Any], seed: int = 3) -> dict[str, Tensor]:
    """Write a checkpoint of random weights in float32, with a draft layer and the hash's constants.
    Return its tensors by published name."""
    config = odd_config(raw)
    recorder = _Recorder(seed)
    Assembler(config, recorder, torch.float32).whole()
    tensors = {
        name if name.startswith(("mtp.", "lm_head.")) else f"model.language_model.{name}": values
        for name, values in recorder.tensors.items()
    }
    for table in config.tables:
        names = f"model.language_model.layers.{table.layer}.ple.ple_embedding"
        tensors[f"{names}.layer_multipliers"] = torch.tensor(table.multipliers)
        tensors[f"{names}.ngram_heads_vocab_sizes"] = torch.tensor(table.sizes)
        tensors[f"{names}.ngram_heads_offsets"] = torch.tensor(table.offsets)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "m.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    return tensors
