"""Qwen4-Exp models for tests: the golden one, and random ones of odd sizes."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tasuki.model.config_json import ConfigFile
from tasuki.model.families.qwen4_exp.assembly import Qwen4ExpAssembler
from tasuki.model.families.qwen4_exp.config import Qwen4ExpConfig
from tasuki.model.families.qwen4_exp.reader import read_config
from tasuki.model.families.qwen4_exp.stack.model import Qwen4ExpModel
from tasuki.model.families.qwen4_exp.stack.plan import views_of
from tasuki.model.forward import Batch, LayerHooks, NullHooks, SequenceSlice
from tasuki.model.weights.matrix import WHOLE, Part
from tasuki.model.weights.safetensors_folder import Checkpoint
from tasuki.model.weights.source import RandomSource
from tasuki.pycache.arena import Arena
from tests.harness.goldens import BESIDE

FOLDER = BESIDE / "qwen4-exp-tiny"
needs_goldens = pytest.mark.skipif(not FOLDER.is_dir(), reason="no goldens beside the repository")


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
        return Qwen4ExpModel(config, Qwen4ExpAssembler(config, source, dtype).whole())


def odd_config(raw: dict[str, Any], source: str = "config") -> Qwen4ExpConfig:
    return replace(read_config(ConfigFile.of(raw, None, source)), draft_layers=1)


def random_model(raw: dict[str, Any], seed: int = 3) -> Qwen4ExpModel:
    """Return a model of random weights in float32, with a draft layer."""
    torch.set_num_threads(1)
    config = odd_config(raw)
    return Qwen4ExpModel(
        config, Qwen4ExpAssembler(config, RandomSource(seed), torch.float32).whole()
    )


PAGED = ("kv", "index")
"""Names of the parts of pages."""
_PAGES = 5


class OwnSequence:
    """One sequence over an arena of NaN: pages in falling order, two slots in turn."""

    def __init__(
        self, model: Qwen4ExpModel, slabs: int = 12, arena: Arena | None = None, slab: int = 0
    ) -> None:
        """slabs: of a new arena, full of NaN. arena: another sequence's, to share; its slabs from
        number `slab` on are this one's."""
        plain = model.config.cache_layout("float32", "float32", "float32")
        self.model = model
        self.arena = arena or Arena(plain, slabs)
        if arena is None:
            self.arena.bytes.fill_(0xFF)
        layout = self.arena.layout
        self.views = views_of(self.arena)
        # The first slabs have slots: two in turn, and two for checkpoints.
        self.slots = [slab, slab + 1]
        blocks = layout.blocks_per_slab
        firsts = range((slab + 4) * blocks, self.arena.slabs * blocks, blocks)
        ids = [first + page for first in firsts for page in range(layout.pages_per_slab)]
        self.pages = ids[_PAGES - 1 :: -1]
        assert len(self.pages) == _PAGES, "give more slabs"
        self.tokens: list[int] = []
        for own in self.views:
            for name, view in own.items():
                if name not in PAGED:
                    view[slab] = 0

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
    Qwen4ExpAssembler(config, recorder, torch.float32).whole()
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
