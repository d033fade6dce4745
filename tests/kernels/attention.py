"""Attention layers without their projections: random contexts, poisoned pages, the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.config import DeltaNetConfig
from tasuki.model.forward import Batch, SequenceSlice
from tasuki.model.ops.attention.page_rows import fp8_views, holds_fp8, write_rows
from tasuki.model.ops.attention.qk_norm_rope_gate import TokenPlaces, qk_norm_rope_gate
from tasuki.model.ops.attention.rope import rotary_cache
from tasuki.model.weights.layers import AttentionWeights
from tasuki.model.weights.matrix import Matrix
from tasuki.pycache.arena import Arena
from tasuki.pycache.fp8_rows import decode_rows
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.parts import FP8_ROWS

from .tensors import DTYPE_NAMES, close, small_config

KV = {"numbers": False, "fp8-rows": True}
each_kv = pytest.mark.parametrize("fp8", KV.values(), ids=KV)


@dataclass(frozen=True)
class Heads:
    """Query and key heads and their dimensions."""

    queries: int
    keys: int
    dim: int
    rotary: float = 0.25

    def config(self) -> DeltaNetConfig:
        return small_config(
            ["linear_attention", "full_attention", "full_attention"],
            num_attention_heads=self.queries,
            num_key_value_heads=self.keys,
            head_dim=self.dim,
            rope_parameters={"partial_rotary_factor": self.rotary, "rope_theta": 1e6},
        )


@dataclass(frozen=True)
class Shape:
    """Heads, the dtype of activations, how near kernels come to the CPU path, and in how many
    parts a row's keys are attended to."""

    heads: Heads
    dtype: torch.dtype
    tolerance: float
    parts: int = 1


@dataclass
class AttentionCase:
    """A case of attention, at the second of two layers. Unwritten parts of its pages hold NaN.
    dtype: dtype of activations, and of pages of numbers."""

    config: DeltaNetConfig
    dtype: torch.dtype
    weights: AttentionWeights
    kv: Tensor
    lengths: tuple[int, ...]
    contexts: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]

    @property
    def device(self) -> torch.device:
        return self.kv.device

    def projected(self) -> Tensor:
        """Return [tokens, ...], with a row stride wider than the row."""
        wide = torch.randn(sum(self.lengths), self.width + 16, device=self.device)
        return wide.to(self.dtype)[:, : self.width]

    @property
    def width(self) -> int:
        config = self.config
        return 2 * (config.query_heads + config.kv_heads) * config.head_dim

    def page_table(self) -> Tensor:
        """[B, pages] int32; unused entries name a page full of NaN."""
        wide = max(map(len, self.pages))
        free = next(page for page in range(len(self.kv)) if not any(page in p for p in self.pages))
        rows = [[*pages, *[free] * (wide - len(pages))] for pages in self.pages]
        return self.int32(rows)

    def places(self, rows: int) -> TokenPlaces:
        pairs = zip(self.lengths, self.contexts, strict=True)
        return TokenPlaces(
            positions=self.int32([before + i for length, before in pairs for i in range(length)]),
            owners=self.int32([i for i, length in enumerate(self.lengths) for _ in range(length)]),
            page_table=self.page_table(),
            rows=self.int32([rows]),
        )

    def queries(self, projected: Tensor, places: TokenPlaces, positions: int = 512) -> Tensor:
        """Return queries normed, rotated and gated; keys and values go to their pages."""
        cache = rotary_cache(self.config, positions, self.device)
        return qk_norm_rope_gate(projected, self.weights, self.config, cache, places, self.kv)

    def int32(self, values: object) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def oracle(self, projected: Tensor, sequences: int) -> tuple[Tensor, Tensor]:
        """Return the gated output of the first `sequences` on the CPU, and kv after it."""
        slices = [
            SequenceSlice([1] * length, before, pages, 0, 0)
            for length, before, pages in zip(self.lengths, self.contexts, self.pages, strict=True)
        ][:sequences]
        tokens = sum(self.lengths[:sequences])
        cpu = torch.device("cpu")
        kv = self.kv.to(cpu, copy=True)
        fields = {name: getattr(self.weights, name).to(cpu) for name in vars(self.weights)}
        operators = TorchBackend(self.config).bind(Batch.pack(slices))
        output = operators.attention(projected[:tokens].to(cpu), AttentionWeights(**fields), kv)
        return output, kv


def attention_case(
    heads: Heads,
    lengths: Sequence[int],
    contexts: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    *,
    fp8: bool = False,
) -> AttentionCase:
    """Return a case. contexts: tokens of each sequence already in its pages. fp8: pages hold FP8
    rows."""
    torch.manual_seed(2)
    config = heads.config()
    kv_dtype = FP8_ROWS if fp8 else DTYPE_NAMES[dtype]
    layout = config.cache_layout(kv_dtype, DTYPE_NAMES[dtype], "float32")
    counts = [
        -(-(length + before) // PAGE_TOKENS)
        for length, before in zip(lengths, contexts, strict=True)
    ]
    slabs = -(-(sum(counts) + 3) // layout.pages_per_slab)
    arena = Arena(layout, slabs, device)
    arena.bytes.fill_(0xFF)
    order = [
        slab * layout.blocks_per_slab + page
        for slab in range(slabs)
        for page in range(layout.pages_per_slab)
    ]
    shuffled = [order[i] for i in torch.randperm(len(order)).tolist()]
    pages = []
    for count in counts:
        pages.append(tuple(shuffled[:count]))
        shuffled = shuffled[count:]
    kv = arena.views("kv")[1]
    for before, own in zip(contexts, pages, strict=True):
        position = torch.arange(before)
        k, v = torch.randn(2, before, config.kv_heads, config.head_dim).to(device, dtype)
        places = (
            torch.tensor(own, dtype=torch.int64)[position // PAGE_TOKENS],
            position % PAGE_TOKENS,
        )
        write_rows(k, v, kv, tuple(place.to(device) for place in places))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device)

    weights = AttentionWeights(
        in_proj=Matrix.of(normal(1, 1)),
        q_norm=1 + 0.3 * normal(config.head_dim),
        k_norm=1 + 0.3 * normal(config.head_dim),
        out_proj=Matrix.of(normal(1, 1)),
    )
    return AttentionCase(config, dtype, weights, kv, tuple(lengths), tuple(contexts), tuple(pages))


def close_pages(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Assert that pages are close. In FP8 rows, values are equal to the bit. Keys may differ by one
    step of a code, because their norms may differ in the last bit.
    `test_fp8_rows_are_the_codes_of_what_pages_of_numbers_hold` checks their codes."""
    actual = actual.cpu()
    if not holds_fp8(expected):
        close(actual, expected, tolerance)
        return
    (codes, scales), (wanted, wanted_scales) = fp8_views(actual), fp8_views(expected)
    assert torch.equal(codes[:, :, 1], wanted[:, :, 1])
    assert torch.equal(scales[:, :, 1], wanted_scales[:, :, 1])
    keys = decode_rows(codes[:, :, 0], scales[:, :, 0], torch.float32)
    close(keys, decode_rows(wanted[:, :, 0], wanted_scales[:, :, 0], torch.float32), 1 / 16)


def roomy(tolerance: float, *, fp8: bool) -> float:
    """Return the tolerance of outputs. A key one code off changes bf16 outputs as much as bf16
    rounding does."""
    return 2 * tolerance if fp8 and tolerance > 1e-3 else tolerance
