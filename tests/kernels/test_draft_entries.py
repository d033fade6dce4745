"""Entries for the draft layer equal the CPU path's, of runs and of decode steps. They follow other
tokens of this forward, or a slot's carry. A golden prompt's guess equals its own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.backends.triton_entries import (
    PromptCarry,
    PromptEntries,
    TritonEntries,
    VerifyEntries,
    fold_carry,
)
from tasuki.model.config import DeltaNetConfig
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.families.qwen3_5.weights import assemble
from tasuki.model.forward import Batch, FoldRows, SequenceSlice
from tasuki.model.ops.attention.qk_norm_rope_gate import TokenPlaces
from tasuki.model.ops.attention.rope import rotary_cache
from tasuki.model.ops.draft.carry import carry_normed
from tasuki.model.ops.linear.gemv import gemv
from tasuki.model.ops.norm.reference import rms_norm
from tasuki.model.weights.layers import DraftWeights
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.source import RandomSource
from tasuki.pycache.arena import Arena
from tests.harness import model_shapes
from tests.harness.covering import slow_behind
from tests.harness.goldens import (
    MODELS,
    Request,
    Workspace,
    final_hidden,
    golden,
    load_model,
    model_cases,
    reference_dir,
)
from tests.harness.qwen35 import config_of, load_config, load_weights

from .tensors import DTYPE_NAMES, close

pytestmark = pytest.mark.usefixtures("poisoned_empty")
each_dtype = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.bfloat16, 2e-2)], ids=["fp32", "bf16"]
)
GOLDENS = {"-".join(case): case for case in model_cases("mtp_last_logits") if case[0] in MODELS}
WIDTH = 96
CHUNK = 67


def small_config() -> DeltaNetConfig:
    raw = model_shapes.dense_raw() | {"hidden_size": WIDTH, "vocab_size": 40}
    return replace(config_of(raw), draft_layers=1)


def on_device(weights: DraftWeights, device: torch.device) -> DraftWeights:
    """Return the weights with the parts used for entries on the device; the rest stays."""
    mixer = weights.attention
    moved = replace(
        mixer,
        in_proj=mixer.in_proj.to(device),
        # Without query heads it is not read, and still named to the kernel.
        q_norm=mixer.q_norm.to(device),
        k_norm=mixer.k_norm.to(device),
    )
    layer = replace(weights.layer, mixer=moved, mixer_norm=weights.layer.mixer_norm.to(device))
    return replace(
        weights,
        fc=weights.fc.to(device),
        embedding_norm=weights.embedding_norm.to(device),
        hidden_norm=weights.hidden_norm.to(device),
        layer=layer,
    )


def linear(x: Tensor, weight: Matrix) -> Tensor:
    return functional.linear(x, weight.plain)


def as_stream(x: Tensor, weight: Matrix) -> Tensor:
    return gemv(x, weight.plain.contiguous())


@dataclass
class EntriesCase:
    """Sequences over a poisoned arena of each device; the slots' carries are random."""

    config: DeltaNetConfig
    embedding: Tensor
    weights: DraftWeights
    batch: Batch
    expected: Arena
    arena: Arena

    @staticmethod
    def of(
        slices: Sequence[SequenceSlice], dtype: torch.dtype, device: torch.device
    ) -> "EntriesCase":
        torch.manual_seed(5)
        config = small_config()
        weights = assemble(config, RandomSource(3), dtype)
        assert weights.draft is not None
        layout = config.cache_layout(DTYPE_NAMES[dtype], DTYPE_NAMES[dtype], "float32")
        expected, arena = Arena(layout, 12), Arena(layout, 12, device)
        expected.bytes.view(dtype).fill_(torch.nan)
        for item in slices:
            expected.views("carry")[0][item.read_slot] = torch.randn(WIDTH)
        arena.bytes.copy_(expected.bytes)
        batch = Batch.pack(slices)
        return EntriesCase(config, weights.embedding, weights.draft, batch, expected, arena)

    @property
    def device(self) -> torch.device:
        return self.arena.bytes.device

    def places(self, rows: int) -> TokenPlaces:
        batch = self.batch
        owners = torch.repeat_interleave(
            torch.arange(len(batch.read_slots)), batch.cu_seqlens.diff()
        )
        tables = (batch.positions, owners, batch.page_table, torch.tensor([rows]))
        return TokenPlaces(*(table.int().to(self.device) for table in tables))

    def oracle(self, hidden: Tensor) -> None:
        """Compute the entries into `expected`."""
        entries = TorchBackend(self.config).bind(self.batch).entries()
        kv, carry = self.expected.views("kv")[-1], self.expected.views("carry")[0]
        entries.write(self.batch.token_ids, hidden, self.embedding, self.weights, kv, carry)
        entries.carry_over(hidden, carry)

    def write(self, entries: TritonEntries, tokens: Tensor, hidden: Tensor | None) -> None:
        weights, embedding = on_device(self.weights, self.device), self.embedding.to(self.device)
        kv, carry = self.arena.views("kv")[-1], self.arena.views("carry")[0]
        entries.write(tokens.to(self.device), hidden, embedding, weights, kv, carry)

    def compare(self, tolerance: float) -> None:
        """Compare the layer's entries and the slots' carries. Nothing else may be written."""
        close(self.arena.views("kv")[-1], self.expected.views("kv")[-1], tolerance)
        close(self.arena.views("carry")[0], self.expected.views("carry")[0], tolerance)
        for ours, theirs in zip(
            (*self.arena.views("kv")[:-1], *self.arena.views("conv"), *self.arena.views("ssm")),
            (
                *self.expected.views("kv")[:-1],
                *self.expected.views("conv"),
                *self.expected.views("ssm"),
            ),
            strict=True,
        ):
            assert torch.equal(ours.cpu().isnan(), theirs.isnan())


def blocks_a_slab() -> int:
    return small_config().cache_layout("float32", "float32", "float32").blocks_per_slab


def runs() -> list[SequenceSlice]:
    """Return runs: from the start, after a page's end, over two page ends with states inside, and
    one token."""
    blocks = blocks_a_slab()
    pages = [8 * blocks + place for place in range(4)]
    return [
        SequenceSlice([5, 6, 7], 0, [pages[0]], 0, 1),
        SequenceSlice([9] * 3, 62, [pages[1], pages[2]], 2, 2, ((64, 3), (65, 4))),
        SequenceSlice([11], 3, [pages[3]], 5, 6),
    ]


@each_dtype
def test_runs_equal_the_cpu_path(
    dtype: torch.dtype, tolerance: float, device: torch.device
) -> None:
    case = EntriesCase.of(runs(), dtype, device)
    hidden = torch.randn(len(case.batch.token_ids), WIDTH).to(dtype)
    places = case.places(len(hidden))
    carry = PromptCarry.of(case.batch, device)
    rotary = rotary_cache(case.config, 128, device)
    entries = PromptEntries(case.config, rotary, places, carry.read_slots, linear, carry)
    case.write(entries, case.batch.token_ids, hidden.to(device))
    entries.carry_over(hidden.to(device), case.arena.views("carry")[0])
    case.oracle(hidden)
    case.compare(tolerance)


@each_dtype
@pytest.mark.parametrize("product", [linear, as_stream])
def test_a_step_equals_the_cpu_path(
    dtype: torch.dtype, tolerance: float, product: object, device: torch.device
) -> None:
    """The last row is padding: it names a slot and a page used by others."""
    blocks = blocks_a_slab()
    steps = [
        SequenceSlice([5], 64, [8 * blocks, 8 * blocks + 1], 0, 1),
        SequenceSlice([6], 0, [8 * blocks + 2], 3, 2),
        SequenceSlice([7], 63, [8 * blocks + 3], 4, 4),
    ]
    padding = SequenceSlice([8], 9, [8 * blocks], 0, 0)
    case = EntriesCase.of([*steps, padding], dtype, device)
    branch, residual = (torch.randn(4, WIDTH).to(dtype) for _ in range(2))
    norm = 1 + 0.3 * torch.randn(WIDTH)
    places = case.places(rows=3)
    read = case.batch.read_slots.int().to(device)
    rotary = rotary_cache(case.config, 128, device)
    entries = TritonEntries(case.config, rotary, places, read, product)  # type: ignore[arg-type]
    case.write(entries, case.batch.token_ids.int(), None)
    carry_normed(
        branch.to(device),
        residual.to(device),
        norm.to(device),
        case.config.norm_eps,
        case.arena.views("carry")[0],
        torch.tensor(case.batch.write_slots, dtype=torch.int32, device=device),
        places.rows,
    )
    case.batch = Batch.pack(steps)
    case.oracle(rms_norm(branch + residual, norm, case.config.norm_eps)[:3])
    case.compare(tolerance)


@each_dtype
def test_rows_with_drafts_equal_the_cpu_path(
    dtype: torch.dtype, tolerance: float, device: torch.device
) -> None:
    """Three sequences have four tokens each, of these 4, 1 and 2 valid, and one more is padding.
    Then the carries after 2, 1 and 2 of them are compared."""
    width, blocks = 4, blocks_a_slab()
    rows = [
        SequenceSlice([5, 6, 7, 8], 62, [8 * blocks, 8 * blocks + 1], 0, None),
        SequenceSlice([9], 0, [8 * blocks + 2], 1, None),
        SequenceSlice([11, 12], 63, [8 * blocks + 3, 9 * blocks], 2, None),
    ]
    case = EntriesCase.of(rows, dtype, device)
    hidden = torch.randn(4, width, WIDTH).to(dtype)
    ids = torch.zeros(4, width, dtype=torch.int32)
    positions = torch.full((4, width), -1, dtype=torch.int32)
    for row, item in enumerate(rows):
        count = len(item.token_ids)
        ids[row, :count] = torch.tensor(item.token_ids)
        positions[row, :count] = item.start + torch.arange(count)
    table = torch.cat([case.batch.page_table, case.batch.page_table[:1]]).int()
    places = TokenPlaces(
        positions.flatten().to(device),
        torch.arange(4, dtype=torch.int32).repeat_interleave(width).to(device),
        table.to(device),
        torch.tensor([3 * width], dtype=torch.int32, device=device),
        gaps=True,
    )
    read = torch.tensor([0, 1, 2, 0], dtype=torch.int32, device=device)
    kept = torch.full((5, 8, WIDTH), torch.nan, dtype=dtype, device=device)
    rotary = rotary_cache(case.config, 128, device)
    view = kept[:4, :width]
    entries = VerifyEntries(case.config, rotary, places, read, linear, view)
    case.write(entries, ids.flatten(), hidden.flatten(0, 1).to(device))
    before = case.arena.views("carry")[0].clone()
    entries.carry_over(hidden.flatten(0, 1).to(device), case.arena.views("carry")[0])
    assert torch.equal(case.arena.views("carry")[0].isnan(), before.isnan()), (
        "no slot is written yet"
    )
    folds = ([0, 1, 2], [2, 1, 2], [0, 1, 2], [4, 1, 5])
    tables = (torch.tensor(column, dtype=torch.int32, device=device) for column in folds)
    fold_carry(kept, FoldRows(*tables), case.arena.views("carry")[0])
    case.oracle(torch.cat([hidden[0], hidden[1, :1], hidden[2, :2]]))
    for row, count, slot in ((0, 2, 4), (1, 1, 1), (2, 2, 5)):
        case.expected.views("carry")[0][slot] = hidden[row, count - 1]
    case.compare(tolerance)


def test_a_token_alone_gets_the_same_entry_as_among_others(device: torch.device) -> None:
    """A run, and its tokens one per step with the last step's carry, give the same bytes, except
    for the split of products."""
    blocks = blocks_a_slab()
    tokens = torch.randint(0, 40, (6,), generator=torch.Generator().manual_seed(1)).tolist()
    whole = SequenceSlice(tokens, 61, [8 * blocks, 8 * blocks + 1], 0, 1)
    case = EntriesCase.of([whole], torch.float32, device)
    stepped = EntriesCase.of([whole], torch.float32, device)
    hidden = torch.randn(len(tokens), WIDTH)
    rotary = rotary_cache(case.config, 128, device)
    carry = PromptCarry.of(case.batch, device)
    entries = PromptEntries(
        case.config, rotary, case.places(len(tokens)), carry.read_slots, linear, carry
    )
    case.write(entries, case.batch.token_ids, hidden.to(device))
    entries.carry_over(hidden.to(device), case.arena.views("carry")[0])
    slots = [0, 1]
    for place, token in enumerate(tokens):
        one = SequenceSlice([token], 61 + place, whole.pages, *slots)
        stepped.batch = Batch.pack([one])
        read = stepped.batch.read_slots.int().to(device)
        step = TritonEntries(case.config, rotary, stepped.places(1), read, linear)
        stepped.write(step, stepped.batch.token_ids.int(), None)
        stepped.arena.views("carry")[0][slots[1]] = hidden[place].to(device)
        slots.reverse()
    pages = list(whole.pages)
    close(stepped.arena.views("kv")[-1][pages], case.arena.views("kv")[-1][pages].cpu(), 5e-6)
    # The run began in slot 0 and ended in 1; an even number of steps ended in the slot they began
    # in.
    close(stepped.arena.views("carry")[0][0], case.arena.views("carry")[0][1].cpu(), 0.0)


@pytest.mark.parametrize(("name", "case_name"), slow_behind(1, GOLDENS))
def test_the_guess_after_a_prompt_is_the_goldens(
    name: str, case_name: str, device: torch.device
) -> None:
    """Entries and the carry come from the kernels, computed from the CPU path's hidden states."""
    found = golden(name, case_name)
    prompt = found.prompt
    folder = reference_dir(name)
    config = replace(load_config(folder), draft_layers=1)
    drafting = Qwen35Model(config, load_weights(folder, config, torch.float32))
    assert drafting.weights.draft is not None
    plain = Request(Workspace(load_model(name)), len(prompt))
    model = plain.workspace.model
    hidden = final_hidden(model, Batch.pack([plain.slice(prompt)]), plain.workspace.arena)
    request = Request(Workspace(drafting), len(prompt) + 1)
    arena = request.workspace.arena
    ours = Arena(arena.layout, arena.slabs, device)
    ours.bytes.copy_(arena.bytes)
    weights = on_device(drafting.weights.draft, device)
    embedding = drafting.weights.embedding.to(device)
    rotary = rotary_cache(config, 1024, device)
    slots = list(request.slots)
    for start in range(0, len(prompt), CHUNK):
        piece = prompt[start : start + CHUNK]
        batch = Batch.pack([SequenceSlice(piece, start, request.pages, *slots)])
        tables = (
            batch.positions,
            torch.zeros(len(piece)),
            batch.page_table,
            torch.tensor([len(piece)]),
        )
        places = TokenPlaces(*(table.int().to(device) for table in tables))
        carry = PromptCarry.of(batch, device)
        entries = PromptEntries(config, rotary, places, carry.read_slots, linear, carry)
        some = hidden[start : start + CHUNK].to(device)
        tokens = batch.token_ids.to(device)
        entries.write(
            tokens, some, embedding, weights, ours.views("kv")[-1], ours.views("carry")[0]
        )
        entries.carry_over(some, ours.views("carry")[0])
        slots.reverse()
    arena.bytes.copy_(ours.bytes)
    one = SequenceSlice([found.greedy[0]], len(prompt), request.pages, *slots)
    guess, _ = drafting.draft_logits(
        arena.views("carry")[0][slots[0]][None], Batch.pack([one]), arena
    )
    expected = found.tensor("mtp_last_logits")
    torch.testing.assert_close(guess[0], expected, atol=1e-3, rtol=0)
    assert guess[0].argmax() == expected.argmax()
