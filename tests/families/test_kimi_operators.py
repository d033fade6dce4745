"""Kimi Linear's operators on bare views: against goldens, and against a naive forward token by
token in odd shapes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tasuki.model.families.kimi_linear.stack import KdaStates, LatentPages, fold_states
from tasuki.model.forward import Batch, LayerHooks, SequenceSlice
from tasuki.model.ops.gdn.reference import CHANNEL_DECAY
from tasuki.model.ops.gdn.reference_channels import channel_step, decayed_products
from tasuki.model.quantise.checkpoint import fp8_block
from tests.families.kimi_reference import NaiveKimi
from tests.families.kimi_runs import BESIDE, KimiRun, odd_shape, write_random_kimi
from tests.harness.goldens import Golden, golden

needs_goldens = pytest.mark.skipif(not BESIDE.is_dir(), reason="no goldens beside the repository")
CASES = ("one", "page", "long", "turn2")


_QUANTISED = {
    *("q_proj", "k_proj", "v_proj", "o_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
    *("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"),
}


def close(got: Tensor, want: Tensor, tolerance: float) -> None:
    assert got.shape == want.shape
    difference = float((got.float() - want).abs().max())
    assert difference <= tolerance, f"off by {difference}, allowed {tolerance}"


def case_of(name: str) -> tuple[Golden, KimiRun]:
    case = golden(BESIDE.name, name)
    return case, KimiRun(BESIDE, len(case.prompt) + len(case.greedy))


def check_states(run: KimiRun, slot: int, case: Golden, prefix: str) -> None:
    for layer, view in enumerate(run.views):
        name = f"{prefix}.layer{layer}"
        if isinstance(view, KdaStates):
            recurrent = case.tensor(f"{name}.recurrent").transpose(1, 2)
            close(view.conv[slot], case.tensor(f"{name}.conv"), case.tolerance["fp32_conv_abs"])
            close(view.ssm[slot], recurrent, case.tolerance["fp32_recurrent_abs"])
        elif f"{name}.latent" in case.arrays:
            latent, shared = (case.tensor(f"{name}.{part}") for part in ("latent", "rope_key"))
            rows = view.rows.flip(0)[: run.page_count].flatten(0, 1)[: len(latent)]
            want = torch.cat([latent, shared], dim=1)
            close(rows, want, case.tolerance["fp32_hidden_abs"])


@needs_goldens
@pytest.mark.parametrize("name", CASES)
def test_prefill_then_greedy(name: str) -> None:
    case, run = case_of(name)
    logits = run.logits(run.forward(case.prompt))
    close(logits[-1], case.tensor("last_logits"), case.tolerance["fp32_logits_abs"])
    length = len(case.prompt)
    if f"at{length}.layer0.conv" in case.arrays:
        check_states(run, 0, case, f"at{length}")
    if "logits" in case.arrays:
        close(logits, case.tensor("logits"), case.tolerance["fp32_logits_abs"])
    assert run.greedy(logits[-1], len(case.greedy)) == case.greedy
    if "end.layer0.conv" in case.arrays:
        check_states(run, 0, case, "end")


@needs_goldens
def test_hidden_states_of_every_layer() -> None:
    case, run = case_of("page")

    class Watch(LayerHooks):
        def after_layer(self, layer: int, stream: Callable[[], Tensor]) -> None:
            want = case.tensor(f"hidden.layer{layer}")
            close(stream(), want, case.tolerance["fp32_hidden_abs"])

    final = run.forward(case.prompt, hooks=Watch())
    close(final, case.tensor("hidden.final_norm"), case.tolerance["fp32_hidden_abs"])


@needs_goldens
@pytest.mark.parametrize("name", ["page", "long", "turn2"])
def test_checkpoints_hold_the_golden_states(name: str) -> None:
    case, run = case_of(name)
    positions = sorted({position for _, position, _ in case.states()})
    marks = [(position, slot) for slot, position in enumerate(positions, 1)]
    run.forward(case.prompt, marks)
    for position, slot in marks:
        check_states(run, slot, case, f"at{position}")


@needs_goldens
@pytest.mark.parametrize("chunk", [1, 37, 64, 100])
def test_prompt_in_chunks(chunk: int) -> None:
    case, run = case_of("turn2")
    for begin in range(0, len(case.prompt), chunk):
        hidden = run.forward(case.prompt[begin : begin + chunk])
    logits = run.logits(hidden[-1:])[0]
    close(logits, case.tensor("last_logits"), case.tolerance["fp32_logits_abs"])
    assert run.greedy(logits, len(case.greedy)) == case.greedy


@needs_goldens
@pytest.mark.parametrize(
    "splits",
    [
        (1, 2, 3, 4, 16, 63, 64, 65, 127, 128, 129, 192, 255, 259),
        pytest.param(range(1, 260), marks=pytest.mark.slow),
    ],
    ids=["edges", "every token"],
)
def test_prompt_split_in_two(splits: Sequence[int]) -> None:
    case, run = case_of("turn2")
    for split in splits:
        run.begin_again()
        run.forward(case.prompt[:split])
        logits = run.logits(run.forward(case.prompt[split:])[-1:])[0]
        close(logits, case.tensor("last_logits"), case.tolerance["fp32_logits_abs"])


@needs_goldens
def test_stepped_rows_are_decode_steps() -> None:
    case, run = case_of("long")
    run.forward(case.prompt, ((len(case.prompt), 1),))
    together = run.forward(case.greedy, stepped=True)
    end = [view.ssm[0].clone() for view in run.views if isinstance(view, KdaStates)]
    run.go_back(len(case.prompt), 1)
    apart = torch.cat([run.forward([token]) for token in case.greedy])
    close(together, apart, 1e-5)
    check_states(run, 0, case, "end")
    again = [view.ssm[0] for view in run.views if isinstance(view, KdaStates)]
    close(torch.stack(end), torch.stack(again), 1e-5)


@needs_goldens
def test_fold_stores_the_states_of_kept_inputs() -> None:
    case, run = case_of("long")
    run.forward(case.prompt, ((len(case.prompt), 1),))
    kept: dict[int, Tensor] = {}

    class Keep(LayerHooks):
        def mixer_inputs(self, layer: int, projected: Tensor) -> None:
            kept[layer] = projected.clone()

    run.forward(case.greedy, hooks=Keep(), stepped=True)
    run.go_back(len(case.prompt), 1)
    batch = Batch.pack([SequenceSlice(case.greedy, len(case.prompt), [1] * 5, 0, 2, (), True)])
    fold_states(kept, run.weights, run.backend.bind(batch), run.views)
    check_states(run, 2, case, "end")
    for view in run.views:
        if isinstance(view, LatentPages):
            behind = view.rows.flip(0)[: run.page_count].flatten(0, 1)[len(case.prompt) :]
            assert behind.isnan().all()


@needs_goldens
def test_bf16_agrees_on_most_tokens() -> None:
    agreed = total = 0
    for name in CASES:
        case = golden(BESIDE.name, name)
        run = KimiRun(BESIDE, len(case.prompt) + len(case.greedy), torch.bfloat16)
        logits = run.logits(run.forward(case.prompt)[-1:])[0]
        for token in case.greedy:
            agreed += int(logits.argmax()) == token
            total += 1
            logits = run.logits(run.forward([token]))[0]
    assert agreed >= case.tolerance["bf16_argmax_agreement_min"] * total, f"{agreed} of {total}"


@pytest.mark.parametrize(("dim", "taps"), [(24, 4), (40, 3), (48, 4)])
def test_odd_shapes_equal_a_naive_forward(tmp_path: Path, dim: int, taps: int) -> None:
    raw = odd_shape(dim, taps)
    naive = NaiveKimi(raw, write_random_kimi(tmp_path / "model", raw))
    tokens = torch.randint(97, (83,), generator=torch.Generator().manual_seed(dim)).tolist()
    want = torch.stack([naive.token(token) for token in tokens])
    run = KimiRun(tmp_path / "model", len(tokens))
    first, rest = run.forward(tokens[:70]), run.forward(tokens[70:82])
    last = run.forward(tokens[82:])
    close(run.logits(torch.cat([first, rest, last])), want, 1e-3)
    for view, state in zip(run.views, naive.layers, strict=True):
        if isinstance(view, KdaStates):
            assert state.matrix is not None
            close(view.ssm[0], state.matrix.transpose(1, 2), 1e-4)
            inputs = torch.stack(state.inputs[1:], dim=-1).flatten(0, 1)
            close(view.conv[0], inputs, 1e-4)


def test_fp8_checkpoints_equal_their_dequantised_weights(tmp_path: Path) -> None:
    raw = odd_shape(40) | {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}}
    stored = write_random_kimi(tmp_path / "model", raw)
    exact = dict(stored)
    for name, weight in exact.items():
        module = name.removesuffix(".weight")
        # Rank products, routers, norms, convolutions and the head's tables stay plain.
        if module.rpartition(".")[2] not in _QUANTISED:
            continue
        made = fp8_block(weight)
        stored[name] = made["weight"]
        stored[f"{module}.weight_scale_inv"] = made["weight_scale_inv"]
        scales = made["weight_scale_inv"].float()
        spread = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
        exact[name] = made["weight"].float() * spread[: weight.shape[0], : weight.shape[1]]
    assert len(stored) > len(exact) + 40
    save_file(stored, tmp_path / "model" / "model.safetensors")
    naive = NaiveKimi(raw, exact)
    tokens = list(range(3, 80))
    want = torch.stack([naive.token(token) for token in tokens])
    run = KimiRun(tmp_path / "model", len(tokens))
    assert run.weights.formats == "fp8_block+plain"
    close(run.logits(run.forward(tokens)), want, 1e-3)


def random_rows(tokens: int, steepest: float) -> tuple[Tensor, ...]:
    """Return q, k, v, g, beta of `tokens` tokens in two heads; log decays down to -steepest."""
    generator = torch.Generator().manual_seed(tokens)
    q, k = torch.randn(2, tokens, 2, 24, generator=generator)
    q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    v = torch.randn(tokens, 2, 40, generator=generator)
    g = -steepest * torch.rand(tokens, 2, 24, generator=generator) ** 4
    return q, k, v, g, torch.rand(tokens, 2, generator=generator)


@pytest.mark.parametrize(
    ("steepest", "tolerance"), [(0.0, 2e-5), (0.5, 2e-5), (20.0, 2e-5), (200.0, 1e-4)]
)
def test_chunks_equal_steps_for_any_decay(steepest: float, tolerance: float) -> None:
    q, k, v, g, beta = random_rows(192, steepest)
    start = torch.randn(2, 40, 24, generator=torch.Generator().manual_seed(1))
    state, outputs = start[None], []
    for token in range(192):
        row = slice(token, token + 1)
        output, state = channel_step(q[row], k[row], v[row], g[row], beta[row], state)
        outputs.append(output)
    chunked = [x.view(3, 64, *x.shape[1:]).transpose(1, 2) for x in (q, k, v, g, beta)]
    got, kept = CHANNEL_DECAY.chunks(*chunked, start, [2], lambda _, after: after)
    close(got.transpose(1, 2).flatten(0, 1), torch.cat(outputs), tolerance)
    close(kept, state, tolerance)


def test_equal_channels_decay_as_a_head() -> None:
    q, k, _, g, _ = random_rows(64, 3.0)
    one = g[..., :1].expand_as(g)
    q, k, one = (x.transpose(0, 1)[None] for x in (q, k, one))
    total = one.cumsum(-2)
    scores, _ = decayed_products(q, k, one, total)
    gap = (total[..., :1] - total[..., 0][..., None, :]).tril()
    close(scores, (q @ k.transpose(-1, -2) * gap.exp()).tril(), 1e-6)
