"""Checkpoints with golden outputs (by transformers), and helpers running a model against them.

The goldens in this folder are made by `python -m tools.goldens` and always exist. Larger ones may
lie beside the repository. Every test of all MODELS, or of QUANTISED, then has them too.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.forward import Batch, LayerHooks, NullHooks, SequenceSlice
from tasuki.model.ops.linear.reference import product
from tasuki.model.ops.norm.reference import rms_norm
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.qwen35 import load_config, load_weights

OWN = Path(__file__).resolve().parents[1] / "golden_models"
BESIDE = Path(__file__).resolve().parents[3] / "shared" / "reference"
OWN_MODELS = ("small-dense", "small-moe")
MODELS = OWN_MODELS + tuple(
    name for name in ("tiny-dense", "tiny-dense-d128", "tiny-moe") if (BESIDE / name).is_dir()
)
QUANTISED = tuple(
    name for name in ("tp4-dense-fp8", "moe-fp8", "moe-nvfp4-ct") if (BESIDE / name).is_dir()
)
"""Names of the goldens with quantised weights. Their outputs are of the dequantised weights in
float32; the CPU path repeats them."""


def reference_dir(model: str) -> Path:
    """Return the folder of a golden model, one of MODELS or QUANTISED."""
    return (OWN if model in OWN_MODELS else BESIDE) / model


def model_cases(array: str = "") -> list[tuple[str, str]]:
    """Return (model, case) of every golden with an array named `array...`, for parametrize. array:
    beginning of the array's name."""
    cases = []
    for model in MODELS + QUANTISED:
        folder = reference_dir(model)
        document = json.loads((folder / "golden.json").read_text())
        with np.load(folder / "golden.npz") as arrays:
            for case in document["cases"]:
                wanted = f"{case['name']}.{array}"
                if any(name.startswith(wanted) for name in arrays.files):
                    cases.append((model, case["name"]))
    return cases


@dataclass(frozen=True)
class Golden:
    """One golden case: a prompt, its expected greedy tokens, and its float32 arrays by name."""

    prompt: list[int]
    greedy: list[int]
    tolerance: dict[str, Any]
    arrays: dict[str, NDArray[np.float32]]

    def tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self.arrays[name])

    def states(self) -> list[tuple[str, int, int]]:
        """Return (array name, prompt tokens, layer) of each stored GDN state. The state is the one
        after this number of prompt tokens."""
        found = []
        for name in self.arrays:
            parts = name.split(".")
            if parts[0].startswith("at") and parts[-1] == "recurrent":
                found.append((name, int(parts[0][2:]), int(parts[1].removeprefix("layer"))))
        return found


def golden(model: str, case: str) -> Golden:
    folder = reference_dir(model)
    document = json.loads((folder / "golden.json").read_text())
    entry = next(item for item in document["cases"] if item["name"] == case)
    with np.load(folder / "golden.npz") as arrays:
        mine = {
            name.removeprefix(f"{case}."): arrays[name]
            for name in arrays.files
            if name.startswith(f"{case}.")
        }
    return Golden(entry["prompt"], entry["greedy"], document["tolerance"], mine)


def cases_of(model: str) -> dict[str, Golden]:
    """Return the goldens of a model, by case name."""
    document = json.loads((reference_dir(model) / "golden.json").read_text())
    return {case["name"]: golden(model, case["name"]) for case in document["cases"]}


def load_model(model: str, dtype: torch.dtype = torch.float32) -> Qwen35Model:
    folder = reference_dir(model)
    config = load_config(folder)
    return Qwen35Model(config, load_weights(folder, config, dtype))


@torch.inference_mode()
def final_hidden(
    model: Qwen35Model, batch: Batch, arena: Arena, hooks: LayerHooks | None = None
) -> torch.Tensor:
    """Forward the batch, and return the hidden states after the final norm, [T, hidden], of every
    token."""
    operators = model.backend.bind(batch)
    token_ids = batch.token_ids.to(model.weights.embedding.device)
    branch, residual = model.layers(token_ids, operators, arena, hooks or NullHooks())
    return rms_norm(branch + residual, model.weights.norm, model.config.norm_eps)


def logits_of(model: Qwen35Model, hidden: torch.Tensor) -> torch.Tensor:
    """Return logits [n, vocab] float32 of hidden states [n, hidden] after the final norm."""
    return product(hidden, model.weights.head).float()


class Workspace:
    """An arena full of NaN with page and slot ids handed out in order, in place of a cache.

    A fresh slot is zeroed, as the cache does for a request without a checkpoint. No id is freed.
    """

    def __init__(
        self,
        model: Qwen35Model,
        slabs: int = 48,
        cache_dtype: str | None = None,
        kv_dtype: str | None = None,
        ssm_dtype: str = "float32",
    ) -> None:
        """Build the arena. slabs: its size. cache_dtype: dtype of pages and convolution states.
        kv_dtype: dtype of the pages alone; None: cache_dtype. ssm_dtype: of recurrent states."""
        # Models this small only lose by threads, the more so when several tests share the cores.
        torch.set_num_threads(1)
        self.model = model
        name = cache_dtype or str(model.weights.dtype).removeprefix("torch.")
        self.arena = Arena(model.config.cache_layout(kv_dtype or name, name, ssm_dtype), slabs)
        self.arena.bytes.fill_(0xFF)
        if kv_dtype is None:
            assert self.arena.views("kv")[0].isnan().all()
        assert self.arena.views("ssm")[0].isnan().all()
        self._next_slab = 0

    def dirty_slot(self) -> int:
        self._next_slab += 1
        return self._next_slab - 1

    def zero_slot(self) -> int:
        slot = self.dirty_slot()
        for view in [v for name in ("conv", "ssm", "carry") for v in self.arena.views(name)]:
            view[slot] = 0
        return slot

    def pages(self, tokens: int) -> list[int]:
        """Return new page ids for this many tokens. The last page of each slab comes first, so no
        two are contiguous."""
        layout = self.arena.layout
        pages: list[int] = []
        while len(pages) * PAGE_TOKENS < tokens:
            base = self.dirty_slot() * layout.blocks_per_slab
            pages.extend(range(base + layout.pages_per_slab - 1, base - 1, -1))
        return pages[: -(-tokens // PAGE_TOKENS)]

    def forward(self, *slices: SequenceSlice, hooks: LayerHooks | None = None) -> torch.Tensor:
        """Forward one batch of the given slices, and return logits [sequences, vocab] float32."""
        return self.model.forward(Batch.pack(slices), self.arena, hooks or NullHooks())


class Request:
    """One sequence in a workspace, with pages for all its tokens and two working state slots."""

    def __init__(self, workspace: Workspace, capacity: int) -> None:
        self.workspace = workspace
        self.pages = workspace.pages(capacity)
        self.slots = [workspace.zero_slot(), workspace.dirty_slot()]
        self.tokens = 0

    def slice(
        self, token_ids: list[int], checkpoints: tuple[tuple[int, int], ...] = ()
    ) -> SequenceSlice:
        """Return the batch slice for the next tokens. It reads one state slot and writes the other;
        then they are swapped. checkpoints: pairs of a position and the slot storing its state."""
        item = SequenceSlice(
            token_ids, self.tokens, self.pages, self.slots[0], self.slots[1], checkpoints
        )
        self.slots.reverse()
        self.tokens += len(token_ids)
        return item

    def forward(
        self, token_ids: list[int], checkpoints: tuple[tuple[int, int], ...] = ()
    ) -> torch.Tensor:
        """Forward the next tokens, and return logits [vocab] after the last one. checkpoints: like
        in slice()."""
        return self.workspace.forward(self.slice(token_ids, checkpoints))[0]

    def greedy(self, logits: torch.Tensor, steps: int) -> list[int]:
        """Return `steps` greedy tokens: the choice of the logits, then of each next forward. The
        last token is forwarded too."""
        tokens = []
        for _ in range(steps):
            tokens.append(int(logits.argmax()))
            logits = self.forward([tokens[-1]])
        return tokens
