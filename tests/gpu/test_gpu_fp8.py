"""Quantised weights on a GPU. In float32 they are exact, with the tokens of the CPU. In bf16,
answers stay within bf16's own divergence, and prompts within that of quantised rows. Tokens
verified together have the logits of single steps.

KL is of the GPU's next-token distribution from that of the CPU with the same weights, in nats.
"""

from functools import cache
from pathlib import Path
from statistics import median

import pytest
import torch

from tasuki.engine.assembly.parts import EngineParts, build_arena
from tasuki.engine.config import EngineConfig
from tasuki.model.families.loading import build_model
from tasuki.model.families.qwen3_5.weights import assemble
from tasuki.model.quantise.checkpoint import RECIPES, quantise_folder
from tasuki.model.quantise.format_names import SERVED_ON_GPUS
from tasuki.model.quantise.source import QuantisedSource
from tasuki.model.weights.source import RandomSource
from tasuki.transfer.chunks.chunk import StepCounter
from tests.gpu.one_sequence import LENGTH, TOKENS, OneSequence, divergence
from tests.gpu.shapes import dense_raw, moe_raw
from tests.harness.engines import Lone, engine_config, submit
from tests.harness.goldens import OWN_MODELS, QUANTISED, cases_of, reference_dir
from tests.harness.qwen35 import config_of

# The library's products in blocks need 512 columns or more.
WIDER = {"hidden_size": 512, "intermediate_size": 1024}
EXPERTS = {"moe_intermediate_size": 128, "shared_expert_intermediate_size": 512}
SHAPES = {
    "dense": config_of(dense_raw() | WIDER),
    "moe": config_of(moe_raw() | WIDER | EXPERTS),
}
# A random model's logits spread widely; a trained one's bounds are docs/quantisation.md's.
STEP_BOUND, PROMPT_BOUND = 0.02, 0.5
APART = 2 * STEP_BOUND
"""Bound of the median between two paths, each rounded in its own order. Near a router's ties one
path may take another expert; this is no rounding error."""

each_form = pytest.mark.parametrize("form", SERVED_ON_GPUS)
each_shape = pytest.mark.parametrize("shape", SHAPES)


@cache
def parts_of(shape: str, form: str, dtype: str, device: str) -> EngineParts:
    """Return parts with the same codes on every device."""
    model = SHAPES[shape]
    source = QuantisedSource(RandomSource(3), RECIPES[form])
    weights = assemble(model, source, getattr(torch, dtype), torch.device(device))
    config = EngineConfig(model=shape, dtype=dtype, device=device, arena_mib=128)
    arena = build_arena(config, model, torch.device(device))
    return EngineParts(model, build_model(model, weights), arena, StepCounter())


@each_form
@each_shape
def test_float32_is_exact(shape: str, form: str) -> None:
    for answer in (False, True):
        want = OneSequence(parts_of(shape, form, "float32", "cpu")).forward(LENGTH)
        got = OneSequence(parts_of(shape, form, "float32", "cuda")).forward(LENGTH, answer=answer)
        assert divergence(got, want) < 1e-4
        assert int(got.argmax()) == int(want.argmax())


@each_form
@each_shape
def test_bf16_is_within_the_rounding_of_its_phase(shape: str, form: str) -> None:
    want = OneSequence(parts_of(shape, form, "bfloat16", "cpu")).forward(LENGTH)
    for answer, bound in ((True, STEP_BOUND), (False, PROMPT_BOUND)):
        sequence = OneSequence(parts_of(shape, form, "bfloat16", "cuda"))
        found = divergence(sequence.forward(LENGTH, answer=answer), want)
        assert found <= bound, f"{found:.5f} nats, allowed {bound}"


@each_form
@each_shape
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("bfloat16", APART)])
def test_verified_together_or_one_by_one(shape: str, form: str, dtype: str, bound: float) -> None:
    parts, found = parts_of(shape, form, dtype, "cuda"), []
    for count in (2, 4, 9):
        for start in (70, 130, 200):
            together = OneSequence(parts)
            together.forward(start)
            got = together.forward(count, answer=True)
            singles = OneSequence(parts)
            singles.forward(start)
            for _ in range(count - 1):
                singles.forward(1, answer=True)
            found.append(divergence(got, singles.forward(1, answer=True)))
    assert median(found) <= bound, found


@each_shape
def test_a_prompt_in_chunks_has_one_precision(shape: str) -> None:
    parts = parts_of(shape, "fp8", "bfloat16", "cuda")
    found = []
    for length in (LENGTH, LENGTH - 7, LENGTH - 50):
        want = OneSequence(parts).forward(length)
        for cuts in ((64, 128), (1, 63, 3), (200,)):
            chunked = OneSequence(parts)
            for count in cuts:
                chunked.forward(count)
            found.append(divergence(chunked.forward(length - chunked.done), want))
    assert median(found) <= APART, found


@pytest.mark.parametrize("model", QUANTISED)
def test_published_goldens_in_float32(model: str) -> None:
    engine = Lone(engine_config(reference_dir(model), device="cuda"))
    for name, case in cases_of(model).items():
        assert engine.ask(name, case.prompt, len(case.greedy)) == case.greedy, name
    engine.assert_at_rest()


@each_form
@pytest.mark.parametrize("model", OWN_MODELS)
def test_folders_answer_as_on_the_cpu(model: str, form: str, tmp_path: Path) -> None:
    folder = tmp_path / form
    quantise_folder(reference_dir(model), folder, RECIPES[form])
    answers = []
    for device in ("cpu", "cuda"):
        engine = Lone(engine_config(folder, device=device))
        cases = cases_of(model).items()
        answers.append({n: engine.ask(n, case.prompt, len(case.greedy)) for n, case in cases})
        engine.assert_at_rest()
    assert answers[0] == answers[1]


@each_shape
def test_graphs_draw_what_single_forwards_do(shape: str) -> None:
    """Decode graphs of several sizes in bf16 mostly give the first tokens of an engine with one
    request."""
    parts = parts_of(shape, "fp8", "bfloat16", "cuda")
    config = EngineConfig(model=shape, dtype="bfloat16", device="cuda", arena_mib=128, max_batch=16)
    engine = Lone(config, parts=parts)
    prompts = [TOKENS[at : at + 40] for at in range(12)]
    alone = [engine.ask(f"alone {i}", prompt, 4) for i, prompt in enumerate(prompts)]
    engine.flush()
    for i, prompt in enumerate(prompts):
        engine.post(submit(f"beside {i}", prompt, 4))
    engine.run()
    beside = [engine.tokens(f"beside {i}") for i in range(len(prompts))]
    same = sum(mine == other for mine, other in zip(alone, beside, strict=True))
    assert same >= len(prompts) - 3
