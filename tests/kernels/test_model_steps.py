"""The model of a GPU: prompts, decode steps, and steps that verify drafts, with their folds. Its
logits, pages and states equal those of the model on the CPU, for each family with kernels."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tasuki.model.attention_split import AttentionSplit
from tasuki.model.config import DeltaNetConfig
from tasuki.model.families import registry
from tasuki.model.families.qwen3_5 import weights
from tasuki.model.families.qwen3_5.gpu import Qwen35OnGpu
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.families.qwen3_5.weights import ModelWeights
from tasuki.model.forward import Batch, DecodeBatch, FoldRows, NullHooks, SequenceSlice, VerifyBatch
from tasuki.model.protocol import GpuModel
from tasuki.model.weights import layers
from tasuki.model.weights.source import RandomSource
from tasuki.pycache.arena import Arena
from tests.harness.covering import slow_behind
from tests.harness.model_shapes import dense_raw, moe_raw, next_raw

from .tensors import close

# The kernels' sizes are powers of two.
SIZES = {
    "hidden_size": 64,
    "head_dim": 32,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_value_heads": 4,
}
OF_EXPERTS = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
MOE = moe_raw()["text_config"]
RAWS = {
    "next": next_raw() | SIZES | OF_EXPERTS,
    "moe": MOE | SIZES | OF_EXPERTS,
    "dense": dense_raw() | SIZES,
}
PROMPTS = ([3, 1, 4, 1, 5], [9, 2, 6])
ANSWERS = ([11, 12, 13], [21, 22, 23])
TOLERANCE = 2e-4


class NoStream:
    """A stream of a machine without a GPU: everything is computed in order."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def wait_stream(self, other: object) -> None:
        """Do nothing."""


@pytest.fixture(autouse=True)
def streams(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.type == "cuda":
        return
    monkeypatch.setattr(torch.cuda, "Stream", NoStream)
    monkeypatch.setattr(torch.cuda, "current_stream", NoStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)


class Both:
    """One model on both devices, over arenas with equal contents, NaN at first."""

    def __init__(self, raw: dict[str, Any], device: torch.device) -> None:
        from tasuki.model.backends.triton_backend import TritonBackend

        self.config = replace(registry.config_of(raw), draft_layers=1, max_position=256)
        assert isinstance(self.config, DeltaNetConfig)
        family = registry.family_of(self.config)
        source, on = RandomSource(3), torch.float32
        here = family.assemble(self.config, source, on)
        with pytest.MonkeyPatch.context() as patch:
            # Kernels read rows of weights, also where the interpreter runs them.
            for module in (layers, weights):
                patch.setattr(module, "for_device", lambda tensor: tensor)
            there = family.assemble(self.config, source, on, device)
        assert isinstance(here, ModelWeights) and isinstance(there, ModelWeights)
        self.cpu = Qwen35Model(self.config, here)
        self.gpu: GpuModel = Qwen35OnGpu(self.config, there, TritonBackend(self.config, on, device))
        layout = self.config.cache_layout("float32", "float32", "float32")
        self.expected, self.arena = Arena(layout, 10), Arena(layout, 10, device)
        self.expected.bytes.fill_(0xFF)
        for slot in (0, 1):
            start = slot * layout.slab_bytes
            self.expected.bytes[start : start + layout.slot_bytes] = 0
        self.arena.bytes.copy_(self.expected.bytes)
        self.pages = [[page * layout.blocks_per_slab for page in row] for row in ((8,), (9,))]

    def slices(self, tokens: Any, starts: list[int], read: int, write: int) -> list[SequenceSlice]:
        return [
            SequenceSlice(row, start, pages, read + place, write + place)
            for place, (row, start, pages) in enumerate(
                zip(tokens, starts, self.pages, strict=True)
            )
        ]

    def check(self) -> None:
        """Compare all pages and states; what nobody wrote is NaN in both."""
        for name in ("kv", "conv", "ssm", "carry"):
            pairs = zip(self.arena.views(name), self.expected.views(name), strict=True)
            for ours, theirs in pairs:
                assert torch.equal(ours.cpu().isnan(), theirs.isnan()), name
                close(ours.cpu().nan_to_num(), theirs.nan_to_num(), TOLERANCE)

    def ints(self, values: object) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.arena.bytes.device)

    def table(self) -> Tensor:
        return self.ints(self.pages)


@pytest.fixture(params=slow_behind(1, {name: name for name in RAWS}))
def both(request: pytest.FixtureRequest, device: torch.device) -> Iterator[Both]:
    yield Both(RAWS[request.param], device)


each_split = pytest.mark.parametrize(
    "split", slow_behind(1, {split.value: split for split in AttentionSplit})
)


@torch.inference_mode()
def prompted(both: Both) -> list[int]:
    """Compute the prompts into the slots 2 and 3, and return their lengths."""
    batch = Batch.pack(both.slices(PROMPTS, [0, 0], 0, 2))
    want = both.cpu.forward(batch, both.expected, NullHooks())
    close(both.gpu.forward(batch, both.arena, NullHooks()).cpu(), want, TOLERANCE)
    return [len(prompt) for prompt in PROMPTS]


@each_split
@torch.inference_mode()
def test_a_prompt_then_a_decode_step(both: Both, split: AttentionSplit) -> None:
    lengths = prompted(both)
    both.check()
    tokens = [answer[:1] for answer in ANSWERS]
    want = both.cpu.forward(
        Batch.pack(both.slices(tokens, lengths, 2, 4)), both.expected, NullHooks()
    )
    batch = DecodeBatch(
        positions=both.ints(lengths),
        context_lens=both.ints([length + 1 for length in lengths]),
        page_table=both.table(),
        read_slots=both.ints([2, 3]),
        write_slots=both.ints([4, 5]),
        rows=both.ints([2]),
    )
    steps = both.gpu.decode_steps(2, split)
    ids = torch.tensor([row[0] for row in tokens], device=both.arena.bytes.device)
    close(steps.run(ids, batch, both.arena).own_head().cpu(), want, TOLERANCE)
    both.check()
    hidden = both.gpu.carried(both.arena)[4:6]
    guess = steps.guesses(batch, both.ints([1, 1]), both.arena)
    slices = both.slices(tokens, lengths, 2, 2)
    drawn, _ = both.cpu.draft_logits(hidden.cpu(), Batch.pack(slices), both.expected)
    close(guess(ids, hidden)[0].cpu(), drawn, TOLERANCE)


@pytest.mark.slow
@each_split
@torch.inference_mode()
def test_verified_drafts_and_their_folds(both: Both, split: AttentionSplit) -> None:
    lengths = prompted(both)
    accepted = [2, 3]
    steps, width = both.gpu.verify_steps(2, 3, split), 3
    batch = VerifyBatch(
        positions=both.ints([length + at for length in lengths for at in range(width)]),
        owners=both.ints([0, 0, 0, 1, 1, 1]),
        token_rows=both.ints([2 * width]),
        counts=both.ints([width, width]),
        context_lens=both.ints([length + width for length in lengths]),
        page_table=both.table(),
        read_slots=both.ints([2, 3]),
        rows=both.ints([2]),
        turn=both.ints([0]),
        fold_counts=both.ints([0, 0]),
        fold_places=both.ints([0, 0]),
        fold_slots=both.ints([2, 3]),
    )
    ids = torch.tensor([token for row in ANSWERS for token in row], device=both.arena.bytes.device)
    logits = steps.run(ids, batch, both.arena, NullHooks()).own_head().cpu()
    rows: list[Tensor] = []
    both.cpu.forward(
        Batch.pack(both.slices(ANSWERS, lengths, 2, 6)),
        both.expected,
        NullHooks(),
        lambda head: rows.append(head(torch.arange(2 * width))),
    )
    close(logits, rows[0], TOLERANCE)
    # The CPU stored the states after all tokens; the accepted ones follow.
    kept = [answer[:count] for answer, count in zip(ANSWERS, accepted, strict=True)]
    both.cpu.forward(Batch.pack(both.slices(kept, lengths, 2, 6)), both.expected, NullHooks())
    columns = ([0, 1], accepted, [2, 3], [6, 7])
    rows = FoldRows(*map(both.ints, columns))
    steps.fold(0, rows, both.ints(lengths), both.arena)
    both.check()
