"""Computes the frozen model's hidden states of texts, after the final norm.

Uses the product's own forward, on a CPU or a GPU, in a separate arena.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tasuki.engine.assembly.parts import build_parts
from tasuki.engine.config import EngineConfig
from tasuki.model.config import DeltaNetConfig
from tasuki.model.forward import Batch, NullHooks, SequenceSlice
from tasuki.model.ops.norm.reference import rms_norm
from tasuki.pycache.layout import PAGE_TOKENS


class Trunk:
    def __init__(self, folder: Path, device: str, threads: int) -> None:
        """Load the model. device: cpu, computing in float32, or cuda, in bfloat16. threads: CPU
        threads. Raises the errors of loading a model."""
        dtype = "float32" if device == "cpu" else "bfloat16"
        config = EngineConfig(
            model=str(folder),
            device=device,
            dtype=dtype,
            draft_layer="off",
            arena_mib=512,
            threads=threads,
        )
        self._parts = build_parts(config)

    @property
    def config(self) -> DeltaNetConfig:
        return self._parts.model_config

    @property
    def embedding(self) -> Tensor:
        """Return the model's embedding [vocab, hidden]. It is also the output head, because the
        embedded model ties them."""
        return self._parts.model.weights.embedding

    @torch.no_grad()
    def hidden(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Return the hidden states [N, T, hidden], on the device. sequences: token ids of N texts
        of one length T."""
        length = len(sequences[0])
        at_once = max(1, 16384 // length)
        rows = [
            self._forward(sequences[at : at + at_once]) for at in range(0, len(sequences), at_once)
        ]
        return torch.cat(rows)

    def _forward(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        model, arena = self._parts.model, self._parts.arena
        layout = arena.layout
        length = len(sequences[0])
        slabs = -(-length // (PAGE_TOKENS * layout.pages_per_slab))
        slices = []
        for number, tokens in enumerate(sequences):
            # A slot is a slab; its pages are in the slabs after it.
            first = number * (slabs + 1)
            for state in (*arena.views("conv"), *arena.views("ssm")):
                state[first] = 0
            pages = [
                (first + 1 + slab) * layout.blocks_per_slab + page
                for slab in range(slabs)
                for page in range(layout.pages_per_slab)
            ]
            slices.append(SequenceSlice(list(tokens), 0, pages, first, first))
        batch = Batch.pack(slices)
        operators = model.backend.bind(batch)
        ids = batch.token_ids.to(self.embedding.device)
        branch, residual = model.layers(ids, operators, arena, NullHooks())
        normed = rms_norm(branch + residual, model.weights.norm, model.config.norm_eps)
        return normed.unflatten(0, (len(sequences), length))
