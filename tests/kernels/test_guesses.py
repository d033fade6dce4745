"""The draft layer's guesses equal the CPU path's, one behind the other and as far as each row wants
them; and they start behind what was drawn last, as far as drafts held."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tasuki.engine.runner.guesses.guess_chain import GuessChain
from tasuki.engine.runner.guesses.guessed_rows import GuessedRows
from tasuki.engine.runner.verify.guess_starts import GuessStarts, accepted
from tasuki.model.backends.decode_scratch import DecodeScratch
from tasuki.model.backends.reduce import one_rank
from tasuki.model.backends.triton_decode import TritonDecode, TritonRowDecode
from tasuki.model.batch import DecodeBatch
from tasuki.model.config import ModelConfig
from tasuki.model.draft_tokens import DraftStart, draft_tokens
from tasuki.model.ops.attention.decode import DecodeWorkspace
from tasuki.model.ops.attention.rope import rotary_cache
from tasuki.model.ops.sampling.gumbel import noise_key
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.sample import Draws, sample
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.model.weights.layers import assemble
from tasuki.model.weights.random_weights import RandomSource
from tasuki.pycache.arena import Arena
from tests.harness import model_shapes

from .tensors import close, count

pytestmark = pytest.mark.usefixtures("poisoned_empty")

LIMIT = 128
# (position of the token drawn last, guesses wanted, temperature): from position 1 on, over a page's
# end, two of another number, and one that would go past the model's last position.
ROWS = ((1, 3, 0.0), (63, 3, 1.0), (70, 1, 1.0), (20, 2, 0.0), (LIMIT - 2, 3, 1.0))
STEPS, VOCAB = 3, 40


def small_config() -> ModelConfig:
    changes = {"hidden_size": 64, "vocab_size": VOCAB, "intermediate_size": 64}
    raw = model_shapes.dense_raw() | changes
    return replace(ModelConfig.from_dict(raw), draft_layers=1, max_position=LIMIT)


def model_on(device: torch.device, dtype: torch.dtype) -> Qwen35Model:
    config = small_config()
    return Qwen35Model(config, assemble(config, RandomSource(3), dtype, device))


def filled_arena(config: ModelConfig, pages: list[list[int]]) -> Arena:
    """Poisoned, but for the draft layer's entries up to each row's position; the first is far
    larger than the others, so that it shows where it is seen."""
    arena = Arena(config.cache_layout("float32", "float32", "float32"), 16)
    arena.bytes.view(torch.float32).fill_(torch.nan)
    for own, (position, *_) in zip(pages, ROWS, strict=True):
        for place in range(position):
            line = arena.kv[-1][own[place // 64], :, :, place % 64]
            line.copy_(torch.randn(line.shape) * (1 if place else 50))
    return arena


# Products as streams of weights read those as they lie on a GPU.
OPERATORS = [TritonDecode, TritonRowDecode] if torch.cuda.is_available() else [TritonDecode]


@pytest.mark.parametrize("operators", OPERATORS)
def test_guesses_equal_the_cpu_path(operators: type[TritonDecode], device: torch.device) -> None:
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
            DraftStart(int(tokens[row]), position, hidden[row], pages[row], 0, params[row], wanted)
            for row, (position, wanted, _) in enumerate(
                # What would go past the end is not guessed on a GPU.
                [(at, min(wanted, LIMIT - at), heat) for at, wanted, heat in ROWS]
            )
        ],
    )
    # The last row is padding: its page is another's.
    table = torch.tensor([*pages, pages[0]], dtype=torch.int32, device=device)
    draws = Draws.empty(rows + 1, device)
    draws.token.copy_(tokens)
    draws.temperature[:rows] = torch.tensor([item.temperature for item in params]).to(device)
    draws.keys[:rows] = torch.tensor([noise_key(item.seed) for item in params]).int().to(device)
    further = torch.tensor([0, 2, 1, 0, 0, 0], dtype=torch.int32, device=device)
    stands = torch.tensor([*(at for at, *_ in ROWS), 0], dtype=torch.int32, device=device)
    draws.positions.copy_(stands + 1 - further)
    left = torch.tensor([*(item[1] for item in ROWS), 0], dtype=torch.int32, device=device)
    chain = GuessChain(torch.zeros_like(left), draws.positions, left)
    batch = DecodeBatch(
        positions=chain.positions,
        context_lens=chain.context_lens,
        page_table=table,
        read_slots=torch.zeros_like(left),
        write_slots=torch.zeros_like(left),
        rows=count(rows, device),
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
    model, before = model_on(device, torch.float32), hidden.to(device)
    guessing = step.drafts(torch.ones_like(left))
    found = []
    chain.begin(further, LIMIT)
    for number in range(STEPS):
        if number:
            chain.advance()
        logits, after = model.guess(draws.token, before, guessing, arena)
        before = torch.where(torch.arange(rows + 1, device=device)[:, None] < rows, after, before)
        sample(logits, draws, batch.rows)
        found.append(draws.token[:rows].clone().cpu())
    guessed = GuessedRows(range(rows), [len(drafts) for drafts in want], torch.stack(found))
    assert list(guessed.tokens().values()) == want
    close(arena.kv[-1], expected.kv[-1], 2e-5)
    for ours, theirs in zip(
        (*arena.kv[:-1], *arena.conv, *arena.ssm, *arena.carry),
        (*expected.kv[:-1], *expected.conv, *expected.ssm, *expected.carry),
        strict=True,
    ):
        assert torch.equal(ours.cpu().isnan(), theirs.isnan())


def ints(values: object, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def test_guesses_start_behind_the_drafts_that_held(device: torch.device) -> None:
    """All hold, none does, one in the middle does not, the last two are no drafts, there is none
    at all."""
    ids = ints([[5, 6, 7, 8], [5, 6, 7, 8], [1, 2, 3, 4], [1, 2, 0, 0], [9, 0, 0, 0]], device)
    drawn = ints([[6, 7, 8, 1], [5, 7, 8, 2], [2, 9, 4, 5], [2, 0, 0, 0], [0, 0, 0, 0]], device)
    counts = ints([4, 4, 4, 2, 1], device)
    assert accepted(drawn, ids, counts).tolist() == [3, 0, 1, 1, 0]
    hidden = torch.arange(40, device=device).view(5, 4, 2).float()
    starts = GuessStarts.behind(drawn, ids, counts, hidden)
    assert starts.tokens.tolist() == [1, 5, 9, 0, 0]
    assert starts.further.tolist() == [3, 0, 1, 1, 0]
    assert starts.hidden[:, 0].tolist() == [6, 8, 18, 26, 32]
    others = GuessStarts(ints([70, 71, 72], device), hidden[:3, 0] - 100, ints([0] * 3, device))
    others.put(torch.tensor([2, 0], device=device), starts.take(torch.tensor([0, 2])))
    assert others.tokens.tolist() == [9, 71, 1]
    assert others.further.tolist() == [1, 0, 3]
    assert others.hidden[:, 0].tolist() == [18, -92, 6]


def test_a_row_that_is_done_stands_nowhere_and_keeps_its_context(device: torch.device) -> None:
    chain = GuessChain(
        ints([0] * 4, device), ints([8, 9, 10, 12], device), ints([2, 1, 3, 4], device)
    )
    seen = []
    chain.begin(ints([1, 0, 0, 0], device), 13)
    for _ in range(3):
        seen.append((chain.positions.tolist(), chain.context_lens.tolist()))
        chain.advance()
    assert seen == [
        ([8, 8, 9, 11], [9, 9, 10, 12]),
        ([9, -1, 10, 12], [10, 9, 11, 13]),
        ([-1, -1, 11, -1], [10, 9, 12, 13]),
    ]
