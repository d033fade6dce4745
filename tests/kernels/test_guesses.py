"""The draft layer's guesses equal the CPU path's, one after the other and as many as each row
wants. They start after the last sampled token, as far as drafts were accepted."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.backends.triton_decode import DecodeScratch, TritonDecode, TritonRowDecode
from tasuki.model.config import DeltaNetConfig
from tasuki.model.drafts import DraftStart, draft_tokens
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.families.qwen3_5.weights import assemble
from tasuki.model.forward import DecodeBatch, one_rank
from tasuki.model.ops.attention.decode import DecodeWorkspace
from tasuki.model.ops.attention.rope import rotary_cache
from tasuki.model.ops.draft.carry import carry_folded
from tasuki.model.ops.draft.chain import Chain, ChainStarts, chain_advance, chain_begin
from tasuki.model.ops.draft.reference_chain import ChainPlaces, accepted
from tasuki.model.ops.draft.take_drafts import take_drafts
from tasuki.model.ops.sampling.gumbel import noise_key
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.sample import Draws, sample
from tasuki.model.weights.source import RandomSource
from tasuki.pycache.arena import Arena
from tests.harness import model_shapes
from tests.harness.qwen35 import config_of

from .tensors import close, count

pytestmark = pytest.mark.usefixtures("poisoned_empty")

LIMIT = 128
# (position of the last sampled token, guesses wanted, temperature): from position 1, over a page's
# end, two with other numbers, and one past the model's last position.
ROWS = ((1, 3, 0.0), (63, 3, 1.0), (70, 1, 1.0), (20, 2, 0.0), (LIMIT - 2, 3, 1.0))
STEPS, VOCAB = 3, 40


def small_config() -> DeltaNetConfig:
    changes = {"hidden_size": 64, "vocab_size": VOCAB, "intermediate_size": 64}
    raw = model_shapes.dense_raw() | changes
    return replace(config_of(raw), draft_layers=1, max_position=LIMIT)


def model_on(device: torch.device, dtype: torch.dtype) -> Qwen35Model:
    config = small_config()
    axes = torch.zeros(config.rotary_dim // 2, dtype=torch.int64)
    weights = assemble(config, RandomSource(3), dtype, device)
    return Qwen35Model(config, weights, TorchBackend(config, axes=axes))


def filled_arena(config: DeltaNetConfig, pages: list[list[int]]) -> Arena:
    """Return a poisoned arena with the draft layer's entries up to each row's position. The first
    entry is much larger than the others, so a read of it shows."""
    arena = Arena(config.cache_layout("float32", "float32", "float32"), 16)
    arena.bytes.view(torch.float32).fill_(torch.nan)
    for own, (position, *_) in zip(pages, ROWS, strict=True):
        for place in range(position):
            line = arena.views("kv")[-1][own[place // 64], :, :, place % 64]
            line.copy_(torch.randn(line.shape) * (1 if place else 50))
    return arena


# Products by streams of weights, read in a GPU's layout.
OPERATORS = [TritonDecode, TritonRowDecode] if torch.cuda.is_available() else [TritonDecode]
DELTAS = {"text": None, "behind-pictures": (0, -40, -7, -20, -100)}


@pytest.mark.parametrize("operators", OPERATORS)
@pytest.mark.parametrize("deltas", DELTAS.values(), ids=DELTAS)
def test_guesses_equal_the_cpu_path(
    operators: type[TritonDecode], deltas: tuple[int, ...] | None, device: torch.device
) -> None:
    torch.manual_seed(4)
    config, rows = small_config(), len(ROWS)
    layout = config.cache_layout("float32", "float32", "float32")
    pages = [
        [(4 + 2 * row) * layout.blocks_per_slab, (5 + 2 * row) * layout.blocks_per_slab]
        for row in range(rows)
    ]
    expected = filled_arena(config, pages)
    arena = Arena(layout, 16, device)
    arena.bytes.copy_(expected.bytes)
    hidden = torch.randn(rows + 1, config.hidden)
    tokens = torch.randint(0, VOCAB, (rows + 1,)).int()
    params = [SamplingParams(temperature=heat, seed=row) for row, (*_, heat) in enumerate(ROWS)]
    want = draft_tokens(
        model_on(torch.device("cpu"), torch.float32),
        expected,
        [
            DraftStart(
                *(int(tokens[row]), position, hidden[row], pages[row], 0, params[row], wanted),
                0 if deltas is None else deltas[row],
            )
            for row, (position, wanted, _) in enumerate(
                # A GPU makes no guesses past the end.
                [(at, min(wanted, LIMIT - at), heat) for at, wanted, heat in ROWS]
            )
        ],
    )
    # The last row is padding: its page is another's.
    table = torch.tensor([*pages, pages[0]], dtype=torch.int32, device=device)
    draws = Draws.empty(rows + 1, device)
    draws.temperature[:rows] = torch.tensor([item.temperature for item in params]).to(device)
    draws.keys[:rows] = torch.tensor([noise_key(item.seed) for item in params]).int().to(device)
    draws.positions.copy_(torch.tensor([*(at + 1 for at, *_ in ROWS), 0]))
    left = ints([*(item[1] for item in ROWS), 0], device)
    chain = Chain(
        draws.token,
        torch.zeros(rows + 1, config.hidden, device=device),
        torch.zeros_like(left),
        draws.positions,
        left,
        count(rows, device),
    )
    lanes = ints([3, 0, 5, 1, 2, 6], device)
    starts = nobody_verified(lanes, tokens, hidden, device)
    batch = DecodeBatch(
        positions=chain.positions,
        context_lens=chain.context_lens,
        page_table=table,
        read_slots=torch.zeros_like(left),
        write_slots=torch.zeros_like(left),
        rows=chain.rows,
        rope_deltas=None if deltas is None else ints([*deltas, -5], device),
    )
    scratch = DecodeScratch(
        DecodeWorkspace.sized(config, rows + 1, device, 3),
        torch.arange(rows + 1, dtype=torch.int32, device=device),
    )
    side = torch.cuda.Stream() if device.type == "cuda" else None
    step = operators(
        config,
        batch,
        scratch,
        rotary_cache(config, LIMIT, device),
        side,  # type: ignore[arg-type]
        one_rank,
    )
    model = model_on(device, torch.float32)
    guessing = step.drafts(torch.ones_like(left))
    drafts = torch.full((7, STEPS + 1), -5, dtype=torch.int32, device=device)
    chain_begin(chain, starts, LIMIT)
    after = chain.hidden
    for number in range(STEPS):
        logits, after = model.guess(chain.tokens, after, guessing, arena)
        sample(logits, draws, batch.rows)
        chain_advance(chain, lanes, drafts[:, number])
    found = [
        tuple(drafts[lane, : len(row)].tolist())
        for lane, row in zip(lanes.tolist(), want, strict=False)
    ]
    assert found == want
    assert (drafts[:, STEPS] == -5).all() and (drafts[lanes[rows]] == -5).all()
    close(arena.views("kv")[-1], expected.views("kv")[-1], 2e-5)
    for ours, theirs in zip(
        (*arena.views("kv")[:-1], *arena.views("conv"), *arena.views("ssm"), *arena.views("carry")),
        (
            *expected.views("kv")[:-1],
            *expected.views("conv"),
            *expected.views("ssm"),
            *expected.views("carry"),
        ),
        strict=True,
    ):
        assert torch.equal(ours.cpu().isnan(), theirs.isnan())


def ints(values: object, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def nobody_verified(
    lanes: Tensor, tokens: Tensor, hidden: Tensor, device: torch.device
) -> ChainStarts:
    """Return the inputs without verified drafts: each row begins with its batch index's token and a
    slot's carry."""
    last = torch.full((8,), -9, dtype=torch.int32, device=device)
    last[lanes.long()] = tokens.to(device)
    carry = torch.full((9, hidden.shape[1]), torch.nan, device=device)
    slots = torch.arange(len(tokens), dtype=torch.int32, device=device) + 2
    carry[slots.long()] = hidden.to(device)
    nothing = ints([0], device)
    places = torch.full_like(slots, -1)
    wide = hidden[None].to(device)
    return ChainStarts(places, lanes, slots, last, carry, nothing, nothing, nothing, nothing, wide)


def test_guesses_begin_behind_the_drafts_that_held(device: torch.device) -> None:
    """Cases: all drafts accepted, none, one rejected in the middle, the last two not drafts, no
    draft at all, and rows that verified nothing. The last row is padding."""
    ids = ints([[5, 6, 7, 8], [5, 6, 7, 8], [1, 2, 3, 4], [1, 2, 0, 0], [9, 0, 0, 0]], device)
    drawn = ints([[6, 7, 8, 1], [5, 7, 8, 2], [2, 9, 4, 5], [2, 0, 0, 0], [0, 0, 0, 0]], device)
    counts = ints([4, 4, 4, 2, 1], device)
    held = accepted(drawn, ids, counts)
    assert held.tolist() == [3, 0, 1, 1, 0]
    # Space for one more token a row than this step's rows have.
    hidden = torch.randn(5, 5, 48, device=device)
    places = [4, -1, 2, 0, 3, 1, -1, 2]
    rows = len(places) - 1
    lanes, slots = ints(range(rows + 1), device), ints([0, 2, 0, 0, 0, 0, 1, 0], device)
    last_tokens, carry = ints(range(70, 70 + rows + 1), device), torch.randn(3, 48, device=device)
    starts = ChainStarts(
        ints(places, device),
        lanes,
        slots,
        last_tokens,
        carry,
        ints([4], device),
        drawn.flatten(),
        ids.flatten(),
        counts,
        hidden,
    )
    contexts, wanted = [9, 30, 8, 20, 12, 6, 31, 3], [3, 2, 1, 3, 2, 3, 4, 3]
    chain = Chain(
        ints([-7] * len(places), device),
        torch.full((len(places), 48), torch.nan, device=device),
        ints([-7] * len(places), device),
        ints(contexts, device),
        ints(wanted, device),
        count(rows, device),
    )
    limit = 31
    twin = ChainPlaces(chain.positions.clone(), chain.context_lens.clone(), chain.left.clone())
    chain_begin(chain, starts, limit)
    of = torch.tensor(places[:rows], device=device)
    further = torch.where(of < 0, 0, held[of]).int()
    twin.begin(torch.cat([further, ints([0], device)]), limit)
    drafts = torch.full((rows + 1, 4), -5, dtype=torch.int32, device=device)
    for step in range(4):
        for mine, own in zip(
            (chain.positions, chain.context_lens, chain.left),
            (twin.positions, twin.context_lens, twin.left),
            strict=True,
        ):
            assert mine[:rows].tolist() == own[:rows].tolist()
        if not step:
            assert chain.tokens.tolist() == [0, 71, 9, 1, 0, 5, 76, -7]
            behind = hidden[of, held[of]]
            behind[1], behind[6] = carry[2], carry[1]
            assert torch.equal(chain.hidden[:rows], behind)
        chain.tokens[:rows] += 100
        chain_advance(chain, lanes, drafts[:, step])
        assert drafts[:rows, step].tolist() == chain.tokens[:rows].tolist()
        twin.advance()
    untouched = (chain.tokens, chain.positions, chain.context_lens, chain.left)
    assert [int(own[rows]) for own in untouched] == [-7, -7, contexts[rows], wanted[rows]]
    assert chain.hidden[rows].isnan().all() and (drafts[rows] == -5).all()


def test_rows_take_the_drafts_of_their_lanes(device: torch.device) -> None:
    ids = ints([[1, 0, 0, 0], [2, 7, 7, 0], [3, 0, 0, 0], [4, 9, 9, 9]], device).flatten()
    drafts = torch.arange(10, 40, dtype=torch.int32, device=device).view(6, 5)[:, :4]
    taken, lanes = ints([1, 0, 1, 0], device), ints([5, 0, 2, 0], device)
    take_drafts(ids, 4, ints([4, 3, 2, 4], device), taken, lanes, drafts)
    assert ids.view(4, 4).tolist() == [[1, 35, 36, 37], [2, 7, 7, 0], [3, 20, 0, 0], [4, 9, 9, 9]]


def test_what_is_carried_behind_tokens_that_hold_goes_to_their_slots(device: torch.device) -> None:
    """Rows are in any order; one that folds nothing writes nothing."""
    hidden = torch.randn(3, 4, 48, device=device)
    carry = torch.full((6, 48), torch.nan, device=device)
    places, counts, slots = [2, 1, 0], [4, 0, 1], [5, 3, 1]
    carry_folded(hidden, ints(places, device), ints(counts, device), carry, ints(slots, device))
    assert torch.equal(carry[5], hidden[2, 3]) and torch.equal(carry[1], hidden[0, 0])
    assert carry[[0, 2, 3, 4]].isnan().all()
