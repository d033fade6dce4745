"""Each operator against a naive form of itself."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.ops.attention.reference import paged_attention, plan_attention
from tasuki.model.ops.attention.rope import RotaryAngles, apply_rotary
from tasuki.model.ops.gdn.reference import gated_delta_rule, plan_gdn
from tasuki.model.ops.gdn.reference_conv import causal_conv, plan_conv
from tasuki.model.ops.gdn.reference_recurrent import recurrent_gated_delta_rule
from tasuki.model.ops.gdn.reference_rounding import StateNoise
from tasuki.model.ops.moe.reference import gated_shared, mixture, route
from tasuki.model.ops.norm.reference import gated_rms_norm, l2_norm, rms_norm
from tasuki.model.ops.row_room import RowRoom
from tasuki.model.weights.matrix import Matrix
from tasuki.pycache.layout import PAGE_TOKENS

NOISE = StateNoise(3)


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gdn_inputs(seed: int, tokens: int, decay: float) -> tuple[Tensor, ...]:
    heads, key_dim, value_dim = 3, 16, 24
    q, k = (l2_norm(noise(seed + i, tokens, heads, key_dim)) for i in range(2))
    v = noise(seed + 2, tokens, heads, value_dim)
    g = -decay * noise(seed + 3, tokens, heads).abs()
    return q * key_dim**-0.5, k, v, g, noise(seed + 4, tokens, heads).sigmoid()


@pytest.mark.parametrize("decay", [0.0, 0.05, 1.0, 40.0])
@pytest.mark.parametrize("tokens", [2, 3, 63, 64, 65, 128, 200])
def test_chunked_rule_equals_the_recurrence(tokens: int, decay: float) -> None:
    inputs = gdn_inputs(tokens, tokens, decay)
    pool = torch.full((5, 3, 24, 16), torch.nan)
    pool[1] = start = noise(9, 3, 24, 16)
    cut = tokens // 2
    saves = [(0, tokens, 2), (0, cut, 4)]
    plan = plan_gdn([tokens], torch.tensor([1]), saves, (), [0], torch.float32)
    got = gated_delta_rule(*inputs, pool, plan, NOISE)
    want, end = recurrent_gated_delta_rule(*inputs, start)
    _, middle = recurrent_gated_delta_rule(*(x[:cut] for x in inputs), start)
    torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(pool[2], end, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(pool[4], middle, atol=2e-5, rtol=1e-4)
    assert torch.equal(pool[1], start)
    assert pool[[0, 3]].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stepped_tokens_leave_what_single_steps_leave_bit_by_bit(dtype: torch.dtype) -> None:
    tokens, before = 6, 61
    inputs = gdn_inputs(3, tokens, 0.5)
    start = noise(9, 3, 24, 16)

    def pool() -> Tensor:
        made = torch.full((tokens + 3, 3, 24, 16), torch.nan, dtype=dtype)
        made[0] = start
        return made

    singles, outputs = pool(), []
    for token in range(tokens):
        one = tuple(x[token : token + 1] for x in inputs)
        slot, saves = torch.tensor([token]), [(0, 1, token + 1)]
        plan = plan_gdn([1], slot, saves, (), [before + token], dtype)
        outputs.append(gated_delta_rule(*one, singles, plan, NOISE))
    stepped = pool()
    saves = [(0, token + 1, token + 1) for token in range(tokens)]
    place = {0}, [before], dtype
    plan = plan_gdn([tokens], torch.tensor([0]), saves, *place)
    assert torch.equal(gated_delta_rule(*inputs, stepped, plan, NOISE), torch.cat(outputs))
    assert torch.equal(stepped[: tokens + 1], singles[: tokens + 1])
    # Without a slot nothing is stored, and a fold of some of them equals as many steps.
    for count in range(1, tokens + 1):
        some, held = tuple(x[:count] for x in inputs), pool()
        nothing = plan_gdn([tokens], torch.tensor([0]), [], *place)
        gated_delta_rule(*inputs, held, nothing, NOISE)
        assert torch.equal(held.isnan(), pool().isnan())
        fold = plan_gdn([count], torch.tensor([0]), [(0, count, tokens + 2)], *place)
        gated_delta_rule(*some, held, fold, NOISE)
        assert torch.equal(held[tokens + 2], singles[count])


def test_recurrence_equals_its_formula() -> None:
    """S [key_dim, value_dim], one head and token at a time, as the model card writes it."""
    q, k, v, g, beta = gdn_inputs(1, 5, 0.5)
    start = noise(2, 3, 24, 16)
    got, end = recurrent_gated_delta_rule(q, k, v, g, beta, start)
    for head in range(3):
        state = start[head].t().clone()
        for token in range(5):
            key = k[token, head]
            state = state * g[token, head].exp()
            delta = beta[token, head] * (v[token, head] - state.t() @ key)
            state = state + torch.outer(key, delta)
            torch.testing.assert_close(got[token, head], state.t() @ q[token, head])
        torch.testing.assert_close(end[head], state.t())


@pytest.mark.parametrize("lengths", [[1], [2], [3], [4], [5], [1, 1, 1], [3, 1, 70, 2]])
def test_conv_equals_torch(lengths: list[int]) -> None:
    channels, width = 10, 4
    weight = noise(1, channels, width)
    slots = len(lengths)
    pool = torch.full((3 * slots, channels, width - 1), torch.nan)
    pool[:slots] = noise(2, slots, channels, width - 1)
    x = noise(3, sum(lengths), channels)
    saves = [(i, length, slots + i) for i, length in enumerate(lengths)]
    marks = [(i, -(-length // 2), 2 * slots + i) for i, length in enumerate(lengths)]
    plan = plan_conv(lengths, torch.arange(slots), saves + marks, width - 1)
    got = causal_conv(x, weight, pool, plan)
    for i, rows in enumerate(x.split(lengths)):
        inputs = torch.cat([pool[i], rows.t()], dim=1)
        want = functional.silu(functional.conv1d(inputs[None], weight[:, None], groups=channels)[0])
        torch.testing.assert_close(got.split(lengths)[i], want.t(), atol=1e-5, rtol=1e-5)
        assert torch.equal(pool[slots + i], inputs[:, -3:])
        half = -(-lengths[i] // 2)
        assert torch.equal(pool[2 * slots + i], inputs[:, half : half + 3])


@pytest.mark.parametrize("before", [0, 1, 63, 64, 100])
@pytest.mark.parametrize("length", [1, 2, 64, 65])
def test_paged_attention_equals_dense(before: int, length: int) -> None:
    heads, kv_heads, dim = 6, 2, 16
    context = before + length
    kv = torch.full((9, kv_heads, 2, PAGE_TOKENS, dim), torch.nan)
    table = torch.tensor([[7, 2, 5, 0, 0]])
    keys, values = noise(1, context, kv_heads, dim), noise(2, context, kv_heads, dim)
    for position in range(before):
        page, offset = table[0, position // PAGE_TOKENS], position % PAGE_TOKENS
        kv[page, :, 0, offset], kv[page, :, 1, offset] = keys[position], values[position]
    q = noise(3, length, heads, dim)
    plan = plan_attention([length], [before], table, torch.arange(before, context), PAGE_TOKENS)
    got = paged_attention(q, keys[before:], values[before:], kv, plan, RowRoom())
    for token in range(length):
        seen = before + token + 1
        for head in range(heads):
            scores = keys[:seen, head // 3] @ q[token, head] * dim**-0.5
            want = scores.softmax(0) @ values[:seen, head // 3]
            torch.testing.assert_close(got[token, head], want, atol=1e-5, rtol=1e-5)
    stored = kv[table[0, :3]].permute(2, 0, 3, 1, 4).flatten(1, 2)[:, :context]
    assert torch.equal(stored, torch.stack([keys, values]))


@pytest.mark.parametrize("before", [*range(1, 40, 6), 200])
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("first_key", [True, False])
def test_tokens_that_are_verified_attend_as_one_after_the_other(
    before: int, kv_heads: int, first_key: bool
) -> None:
    """They are equal bit by bit, in bf16 too; otherwise drafts would change tokens."""
    heads, dim, length = 8, 128, 5
    context = before + length
    table = torch.tensor([[3, 0, 4, 1, 2]])
    made = [noise(seed, context, n, dim) for seed, n in ((1, heads), (2, kv_heads), (3, kv_heads))]
    q, k, v = (x.to(torch.bfloat16) for x in made)

    def attend(cuts: list[int], stepped: tuple[int, ...]) -> torch.Tensor:
        kv = torch.zeros((5, kv_heads, 2, PAGE_TOKENS, dim), dtype=torch.bfloat16)
        found = []
        for begin, end in pairwise([0, before, *cuts]):
            positions = torch.arange(begin, end)
            plan = plan_attention([end - begin], [begin], table, positions, PAGE_TOKENS, stepped)
            plan = plan if first_key else plan.without_first_key()
            rows = slice(begin, end)
            if end > begin:
                found.append(paged_attention(q[rows], k[rows], v[rows], kv, plan, RowRoom()))
        return torch.cat(found)[before:]

    alone = attend([*range(before + 1, context + 1)], ())
    assert torch.equal(attend([context], (0,)), alone)


def test_mixture_equals_a_loop_over_tokens() -> None:
    experts, chosen, hidden, inner = 7, 3, 12, 5
    router, x = noise(1, experts, hidden), noise(2, 20, hidden)
    gate_up, down = noise(3, experts, 2 * inner, hidden), noise(4, experts, hidden, inner)
    weights, ids = route(x, router, chosen)
    got = mixture(x, Matrix.of(gate_up), Matrix.of(down), weights, ids)
    for token in range(20):
        probabilities = (router @ x[token]).softmax(0)
        best = probabilities.sort(descending=True).indices[:chosen]
        total = torch.zeros(hidden)
        for expert in best:
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            share = probabilities[expert] / probabilities[best].sum()
            total += share * (down[expert] @ (functional.silu(gate) * up))
        torch.testing.assert_close(got[token], total, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(weights.sum(-1), torch.ones(20))


def test_shared_expert_is_gated_by_a_sigmoid() -> None:
    x, gate = noise(1, 4, 12), noise(2, 1, 12)
    gate_up, down = noise(3, 10, 12), noise(4, 12, 5)
    left, right = (x @ gate_up.t()).chunk(2, dim=-1)
    want = (x @ gate.t()).sigmoid() * ((functional.silu(left) * right) @ down.t())
    got = gated_shared(x, Matrix.of(gate_up), Matrix.of(down), gate)
    torch.testing.assert_close(got, want)


def test_norms() -> None:
    x, gate, weight = noise(1, 5, 8), noise(2, 5, 8), noise(3, 8)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.1)
    torch.testing.assert_close(rms_norm(x, 1 + weight, 0.1), x * scale * (1 + weight))
    want = x * scale * weight * functional.silu(gate)
    torch.testing.assert_close(gated_rms_norm(x, gate, weight, 0.1), want)
    torch.testing.assert_close(l2_norm(x).norm(dim=-1), torch.ones(5))
    assert l2_norm(torch.zeros(1, 8)).eq(0).all()
    assert rms_norm(x.bfloat16(), weight, 0.1).dtype is torch.bfloat16


def test_rotary_turns_halves_and_passes_the_rest() -> None:
    x = noise(1, 3, 2, 16)
    positions = torch.tensor([0, 5, 300])
    got = apply_rotary(x, *RotaryAngles.stretched(8, 1e4, None).table(positions))
    for row, position in enumerate(positions.tolist()):
        for j in range(4):
            turn = torch.polar(torch.ones(1), torch.tensor([position * 1e4 ** (-2 * j / 8)]))
            want = torch.complex(x[row, :, j], x[row, :, j + 4]) * turn
            torch.testing.assert_close(got[row, :, j], want.real)
            torch.testing.assert_close(got[row, :, j + 4], want.imag)
    assert torch.equal(got[..., 8:], x[..., 8:])
