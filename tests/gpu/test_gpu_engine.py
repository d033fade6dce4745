"""The engine on the GPU in float32: equal tokens however the work is cut, batched or cached.

The oracle is the same model on the CPU, one request at a time.
"""

from functools import cache

import numpy as np
import pytest
from tasuki.engine import messages as m
from tasuki.engine.config import EngineConfig
from tasuki.model.ops.sampling.params import SamplingParams

from tests.gpu.shapes import CONFIGS, VOCAB, parts_of
from tests.harness.engines import Lone, submit

SHAPES = sorted(CONFIGS)


def prompt(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()


def sampling(new: int, seed: int) -> SamplingParams:
    """Every third request is greedy, every third drawn, every third drawn from a cut."""
    kinds: list[dict[str, float | int]] = [
        {},
        {"temperature": 0.8, "seed": seed},
        {"temperature": 1.5, "seed": seed, "top_k": 40, "top_p": 0.9},
    ]
    return SamplingParams(max_new_tokens=new, ignore_eos=True, **kinds[seed % 3])  # type: ignore[arg-type]


@cache
def engine_of(shape: str, device: str, chunk: int, max_batch: int) -> Lone:
    config = EngineConfig(
        model=shape,
        dtype="float32",
        device=device,
        arena_mib=512,
        prefill_chunk_tokens=chunk,
        max_batch=max_batch,
    )
    # The arena is not part of what forwards depend on, so engines of one device share parts.
    return Lone(config, parts=parts_of(shape, EngineConfig("", "float32", device=device)))


def cold(shape: str, device: str = "cuda", chunk: int = 512, max_batch: int = 64) -> Lone:
    engine = engine_of(shape, device, chunk, max_batch)
    engine.flush()
    return engine


@cache
def expected(shape: str, length: int, seed: int, new: int) -> tuple[int, ...]:
    engine = cold(shape, "cpu")
    engine.post(submit("r", prompt(length, seed), new, sampling=sampling(new, seed)))
    engine.run()
    return tuple(engine.tokens("r"))


def ask(engine: Lone, name: str, length: int, seed: int, new: int = 6) -> None:
    engine.post(submit(name, prompt(length, seed), new, sampling=sampling(new, seed)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 63, 64, 65, 129, 700])
def test_prompts_of_every_length(shape: str, length: int) -> None:
    engine = cold(shape)
    ask(engine, "r", length, seed=length)
    engine.run()
    assert tuple(engine.tokens("r")) == expected(shape, length, length, 6)
    engine.assert_at_rest()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [2, 3, 5, 17, 64])
def test_a_batch_answers_as_each_request_alone(shape: str, batch: int) -> None:
    engine = cold(shape, chunk=256)
    lengths = {seed: 1 + 37 * seed % 190 for seed in range(batch)}
    for seed, length in lengths.items():
        # Answers of unequal length, so that the padded batch shrinks on the way.
        ask(engine, f"r{seed}", length, seed, 3 + seed % 5)
    engine.run()
    for seed, length in lengths.items():
        got = tuple(engine.tokens(f"r{seed}"))
        assert got == expected(shape, length, seed, 3 + seed % 5), (seed, length)
    engine.assert_at_rest()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk", [64, 192, 1024])
def test_chunks_change_nothing(shape: str, chunk: int) -> None:
    engine = cold(shape, chunk=chunk)
    ask(engine, "r", 900, seed=4)
    engine.run()
    assert tuple(engine.tokens("r")) == expected(shape, 900, 4, 6)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_fork_a_repeat_and_the_next_turn_resume_and_answer_alike(shape: str) -> None:
    engine = cold(shape)
    oracle = cold(shape, "cpu")
    first = prompt(300, 1)
    tokens = {"first": first, "repeat": first, "branch": first[:200] + prompt(50, 2)}
    hits = []
    for lone in (engine, oracle):
        for name, asked in tokens.items():
            lone.post(submit(name, asked, 5))
            lone.run()
        again = first + lone.tokens("first") + prompt(40, 3)
        for name in ("turn", "side"):
            lone.post(submit(name, again, 7))
        lone.run()
        names = [*tokens, "turn", "side"]
        found = [lone.finished(name).usage.hit for name in names]
        hits.append([(hit.usable_tokens, hit.checkpoint_source) for hit in found if hit])
        tokens_of = {name: lone.tokens(name) for name in names}
        if lone is engine:
            answers = tokens_of
    assert answers == tokens_of
    assert hits[0] == hits[1]
    assert max(usable for usable, _ in hits[0]) == 304
    engine.assert_at_rest()


@pytest.mark.parametrize("shape", SHAPES)
def test_stops_and_aborts_leave_exact_states(shape: str) -> None:
    engine = cold(shape)
    drawn = SamplingParams(max_new_tokens=12, temperature=40.0, seed=3, ignore_eos=True)
    engine.post(submit("whole", prompt(100, 5), 12, sampling=drawn))
    engine.post(submit("gone", prompt(400, 6), 30))
    for _ in range(5):
        engine.step()
    engine.post(m.Abort(m.RequestId("gone")))
    engine.run()
    answer = engine.tokens("whole")
    stop = SamplingParams(12, temperature=40.0, seed=3, stop_token_ids=(answer[4],))
    engine.flush()
    engine.post(submit("stopped", prompt(100, 5), 12, sampling=stop))
    engine.run()
    told = engine.tokens("stopped")
    assert told == answer[: answer.index(answer[4]) + 1]
    engine.post(submit("turn", prompt(100, 5) + told + prompt(9, 7), 6))
    engine.run()
    hit = engine.finished("turn").usage.hit
    assert hit is not None and hit.usable_tokens == 99 + len(told)
    oracle = cold(shape, "cpu")
    oracle.post(submit("turn", prompt(100, 5) + told + prompt(9, 7), 6))
    oracle.run()
    assert engine.tokens("turn") == oracle.tokens("turn")
    engine.assert_at_rest()
