"""Scored prompts and forked answers on a GPU are those of the CPU."""

from dataclasses import replace

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.config import EngineConfig
from tasuki.model.ops.sampling.params import SamplingParams
from tests.gpu.shapes import VOCAB, parts_of
from tests.harness.engines import Lone, submit

DRAWN = SamplingParams(max_new_tokens=8, ignore_eos=True, temperature=1.5, seed=11)


def engine(device: str, chunk: int = 512) -> Lone:
    parts = parts_of("dense", EngineConfig(model="", dtype="float32", device=device, arena_mib=512))
    config = EngineConfig(
        model="dense",
        dtype="float32",
        device=device,
        arena_mib=512,
        prefill_chunk_tokens=chunk,
    )
    made = Lone(config, parts=parts)
    made.flush()
    return made


def prompt(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, VOCAB, length).tolist()


def scored(made: Lone, length: int) -> dict[str, np.ndarray]:
    made.post(submit("r", prompt(length), 2, prompt_logprobs=5))
    made.run()
    segments = made.all_said(m.PromptScored)
    columns = ("logprobs", "top_logprobs", "ranks", "top_tokens")
    return {
        column: np.concatenate([getattr(segment, column) for segment in segments])
        for column in columns
    }


def test_scores_are_the_cpu_s() -> None:
    for length in (2, 40, 300):
        expected, found = scored(engine("cpu"), length), scored(engine("cuda", chunk=64), length)
        for column in ("logprobs", "top_logprobs"):
            np.testing.assert_allclose(found[column], expected[column], rtol=0, atol=1e-3)
        same = (found["top_tokens"] == expected["top_tokens"]).mean()
        assert same > 0.99 and len(found["ranks"]) == length - 1


def test_forked_answers_are_each_seed_s_own() -> None:
    gpu = engine("cuda")
    sampling = replace(DRAWN, presence_penalty=1.0)
    forks = tuple(m.Fork(m.RequestId(f"r-{place}"), DRAWN.seed + place) for place in (1, 2, 3))
    gpu.post(submit("r", prompt(300), 8, sampling=sampling, forks=forks))
    gpu.run()
    for place, name in enumerate(("r", "r-1", "r-2", "r-3")):
        cpu = engine("cpu")
        own = replace(sampling, seed=DRAWN.seed + place)
        assert gpu.tokens(name) == cpu.ask("alone", prompt(300), 8, sampling=own)
    gpu.assert_at_rest()
