"""Rounding of bfloat16 states inside kernels. It has the bits of the CPU path: in decode steps, in
folds of drafts, and in prompts at multiples of 64 tokens, on every rank."""

from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from tasuki.model.forward import FoldRows
from tasuki.model.ops.gdn.decode import gdn_decode
from tasuki.model.ops.gdn.prefill import gdn_prefill
from tasuki.model.ops.gdn.prefill_plan import plan_gdn_prefill
from tasuki.model.ops.gdn.reference_rounding import StateNoise
from tasuki.model.ops.gdn.state_rounding import key_words, round_any_state, row_words
from tasuki.model.ops.gdn.verify.fold import gdn_fold
from tasuki.model.ops.gdn.verify.kept_inputs import KeptTurns
from tasuki.model.ops.gdn.verify.rows import RowFolds, gdn_verify

from .gdn import GdnCase, Heads, gdn_case
from .tensors import count, int32

pytestmark = pytest.mark.usefixtures("poisoned_empty")

STEPS, PROMPTS = Heads(1, 2, 32, 64), Heads(1, 1, 32, 32)
HALF = torch.bfloat16
BITS = torch.int16


@triton.jit
def _round_kernel(states, rounded, head, tokens, ROWS: tl.constexpr, KEYS: tl.constexpr):
    row, key = tl.arange(0, ROWS), tl.arange(0, KEYS)
    at = row[:, None] * KEYS + key[None, :]
    words = row_words(head, tokens, row)
    keys, upper = key_words(key[None, :], KEYS)
    state = round_any_state(tl.load(states + at), words[:, None], keys, upper)
    tl.store(rounded + at, state.to(rounded.dtype.element_ty))


def special_states(device: torch.device) -> Tensor:
    """Return random numbers of every size, both zeros, infinities, NaN, and the least numbers."""
    torch.manual_seed(5)
    states = torch.randn(64, 32) * torch.exp2(torch.randint(-60, 60, (64, 32)).float())
    words = [0, -0x80000000, 0x7F800000, -0x800000, 0x7FFFFFFF, -1, 1, -0x7FFFFFFF, 0x7F7F0000]
    states.view(-1)[: len(words)] = torch.tensor(words, dtype=torch.int32).view(torch.float32)
    return states.to(device)


@pytest.mark.parametrize(("layer", "head", "tokens"), [(0, 0, 1), (23, 31, 262144)])
def test_numbers_are_rounded_to_the_bits_of_the_cpu_path(
    layer: int, head: int, tokens: int, device: torch.device
) -> None:
    states = special_states(device)
    rounded = torch.zeros_like(states, dtype=HALF)
    noise = StateNoise(layer, head)
    _round_kernel[(1,)](states, rounded, noise.origin, tokens, ROWS=64, KEYS=32)
    want = noise.rounded(states.cpu()[None, None], torch.tensor([tokens]))[0, 0]
    assert torch.equal(rounded.cpu().isnan(), want.isnan()) and int(want.isnan().sum()) == 2
    numbers = ~want.isnan()
    assert torch.equal(rounded.cpu().view(BITS)[numbers], want.view(BITS)[numbers])


def both_dtypes(heads: Heads, slots: int, device: torch.device) -> tuple[GdnCase, GdnCase]:
    """Return a case with float32 states and one with bfloat16 states. Slot 0 is filled with equal
    numbers. The layer is layer 0."""
    whole = gdn_case(heads, slots, torch.float32, torch.float32, device)
    half = gdn_case(heads, slots, torch.float32, HALF, device)
    half.fill([0])
    whole.conv.copy_(half.conv)
    whole.ssm.copy_(half.ssm)
    return whole, half


def faded(case: GdnCase, tokens: int) -> Tensor:
    """Return inputs with updates too small to change a number (beta = e^-80). So a state only
    fades, and no order of sums matters."""
    projected = case.projected(tokens)
    heads = case.config.value_heads
    projected[:, -2 * heads : -heads] = -80.0
    return projected


def rounded(states: Tensor, *tokens: int, first_head: int = 0) -> Tensor:
    """Return states [N, heads, ...] rounded by the CPU path, after these numbers of tokens."""
    return StateNoise(0, first_head).rounded(states.cpu(), torch.tensor(tokens)).to(states.device)


def test_a_step_rounds_as_the_cpu_path(device: torch.device) -> None:
    whole, half = both_dtypes(STEPS, 3, device)
    projected = faded(half, 1)
    tables = [int32([value], device) for value in (0, 1, 1, 700)]
    for case in (whole, half):
        gdn_decode(projected, case.weights, case.config, case.conv, case.ssm, *tables)
    assert not torch.equal(whole.ssm[1], whole.ssm[1].to(HALF).float())
    assert torch.equal(half.ssm[1], rounded(whole.ssm[1:2], 701)[0])


def test_a_fold_rounds_every_layer_as_steps_do(device: torch.device) -> None:
    _, case = both_dtypes(STEPS, 1, device)
    projected, one, config = faded(case, 1), count(1, device), case.config
    # Slots 0 to 2, with the state of layer 0 and then of layer 1 in each.
    ssm, conv = (
        [memory[:, layer] for layer in range(2)]
        for memory in (
            case.ssm[:1].expand(3, 2, *case.ssm.shape[1:]).clone(),
            case.conv[:1].expand(3, 2, *case.conv.shape[1:]).clone(),
        )
    )
    kept = KeptTurns.empty(config, 2, 1, 1, torch.float32, device)
    at = int32([63], device)
    none, zero = int32([0], device), int32([0], device)
    for layer in range(2):
        weights = replace(case.weights, number=layer)
        states = projected, weights, config, conv[layer], ssm[layer]
        folds = RowFolds(none, none, zero)
        gdn_verify(*states, zero, one, one, at, kept.layer(layer), zero, folds)
        gdn_decode(*states, zero, int32([1], device), one, at)
    tables = [int32([value], device) for value in (0, 1, 0, 2)]
    gdn_fold(kept.of(0), config, conv, ssm, FoldRows(*tables), at)
    for layer in range(2):
        assert torch.equal(ssm[layer][2], ssm[layer][1])
        assert torch.equal(ssm[layer][0], case.ssm[0])
    assert not torch.equal(ssm[0][1], ssm[1][1])


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_round_their_heads_as_one_device_does(rank: int, device: torch.device) -> None:
    _, whole = both_dtypes(replace(STEPS, keys=2), 2, device)
    _, part = both_dtypes(replace(STEPS, values=1), 2, device)
    config = replace(part.config, first_value_head=rank)
    projected = faded(part, 1)
    part.ssm[0] = whole.ssm[0, rank : rank + 1]
    # Gates of the rank's head in both.
    every = faded(whole, 1)
    every[:, -2:] = projected[:, -1:]
    for weights in (part.weights, whole.weights):
        weights.decay_rate.fill_(-3.0)
        weights.dt_bias.fill_(-4.0)
    tables = [int32([value], device) for value in (0, 1, 1, 99)]
    gdn_decode(every, whole.weights, whole.config, whole.conv, whole.ssm, *tables)
    gdn_decode(projected, part.weights, config, part.conv, part.ssm, *tables)
    assert torch.equal(part.ssm[1, 0], whole.ssm[1, rank])


def prompted(
    case: GdnCase, projected: Tensor, begin: int, end: int, *saves: tuple[int, int]
) -> None:
    """Run tokens [begin, end) of a prompt, from slot 0 if it begins there, else from slot 1. saves:
    tokens in the state and slot, ascending; slot 1 gets the last state too."""
    marks = [(0, tokens - begin, slot) for tokens, slot in (*saves, (end, 1))]
    slots, length = [0 if begin == 0 else 1], [end - begin]
    plan = plan_gdn_prefill(length, slots, marks, [begin], case.ssm.dtype, case.ssm.device)
    own = projected[begin:end]
    gdn_prefill(own, case.weights, case.config, case.conv, case.ssm, plan)


def test_a_prompt_rounds_at_multiples_of_64_tokens(device: torch.device) -> None:
    """A state stored elsewhere is a rounded copy. The float32 twin is rounded by the CPU path."""
    whole, half = both_dtypes(PROMPTS, 4, device)
    projected = half.projected(130)
    prompted(half, projected, 0, 130, (64, 2), (128, 3))
    prompted(whole, projected, 0, 64)
    first = rounded(whole.ssm[1:2], 64)
    assert torch.equal(half.ssm[2], first[0])
    whole.ssm[1] = first[0].float()
    prompted(whole, projected, 64, 128)
    second = rounded(whole.ssm[1:2], 128)
    assert torch.equal(half.ssm[3], second[0])
    whole.ssm[1] = second[0].float()
    prompted(whole, projected, 128, 130)
    last = half.ssm[1].clone()
    assert torch.equal(last, rounded(whole.ssm[1:2], 130)[0])
    # Cut there, a prompt has the states of the whole one.
    for begin, end in ((0, 64), (64, 128), (128, 130)):
        prompted(half, projected, begin, end)
    assert torch.equal(half.ssm[1], last)


def test_a_prompt_cut_elsewhere_has_one_rounding_more(device: torch.device) -> None:
    """Each rounding moves a state by less than 2^-7 of its size. The rule never increases the
    difference of two states: a key of unit length takes away at most its own part."""
    whole, cut = (both_dtypes(PROMPTS, 3, device)[1] for _ in range(2))
    projected = whole.projected(64)
    for case in (whole, cut):
        case.weights.decay_rate.fill_(-0.01)
    prompted(whole, projected, 0, 64)
    prompted(cut, projected, 0, 37)
    middle = float(cut.ssm[1].float().norm())
    prompted(cut, projected, 37, 64)
    assert not torch.equal(cut.ssm[1], whole.ssm[1])
    difference = float((cut.ssm[1].float() - whole.ssm[1].float()).norm())
    assert difference <= 2**-7 * (middle + 2 * float(whole.ssm[1].float().norm()))
