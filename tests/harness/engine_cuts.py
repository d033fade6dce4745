"""Tests: tokens are equal for every way of chunking, batching or caching an engine's work. One body
for every device: a test file gives the fixture `engines`, with its device and shapes, and a
subclass of EngineCuts."""

from typing import Protocol

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engines import Lone, submit


class Engines(Protocol):
    """Engines of one model. vocabulary: upper bound of the token ids, exclusive."""

    vocabulary: int

    def cold(self, chunk: int = 512, max_batch: int = 64) -> Lone:
        """Return an engine at rest with an empty cache, on the device under test. chunk: largest
        prefill chunk in tokens. max_batch: largest number of requests in a forward."""
        ...

    def oracle(self) -> Lone:
        """Return an engine like cold() for reference answers: on the CPU, with one request in a
        forward."""
        ...


def sampling(new: int, seed: int) -> SamplingParams:
    """Return sampling parameters by seed: a third greedy, a third sampled, a third sampled after a
    filter. new: answer tokens."""
    kinds: list[dict[str, float | int]] = [
        {},
        {"temperature": 0.8, "seed": seed},
        {"temperature": 1.5, "seed": seed, "top_k": 40, "top_p": 0.9},
    ]
    return SamplingParams(max_new_tokens=new, ignore_eos=True, **kinds[seed % 3])  # type: ignore[arg-type]


def prompt(engines: Engines, length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, engines.vocabulary, length).tolist()


def asked(engines: Engines, name: str, length: int, seed: int, new: int = 6) -> m.Submit:
    return submit(name, prompt(engines, length, seed), new, sampling=sampling(new, seed))


def expected(engines: Engines, length: int, seed: int, new: int = 6) -> list[int]:
    oracle = engines.oracle()
    oracle.post(asked(engines, "r", length, seed, new))
    oracle.run()
    return oracle.tokens("r")


class EngineCuts:
    @pytest.mark.parametrize("length", [1, 2, 3, 4, 63, 64, 65, 129, 200, 700])
    def test_prompts_of_every_length_finish_and_leave_nothing(
        self, engines: Engines, length: int
    ) -> None:
        engine = engines.cold()
        engine.post(asked(engines, "r", length, seed=length))
        engine.run()
        assert engine.tokens("r") == expected(engines, length, length)
        done, hit = engine.finished("r"), engine.hit("r")
        assert done.reason is m.FinishReason.LENGTH
        assert done.usage.completion_tokens == 6
        assert hit.usable_tokens + sum(hit.causes.values()) == length
        engine.assert_at_rest()

    @pytest.mark.parametrize("batch", [2, 3, 5, 17, 64])
    def test_a_batch_answers_as_each_request_alone(self, engines: Engines, batch: int) -> None:
        engine = engines.cold(chunk=256)
        # Answers have unequal lengths, so the padded batch shrinks meanwhile.
        requests = {seed: (1 + 37 * seed % 190, seed, 3 + seed % 5) for seed in range(batch)}
        for seed, request in requests.items():
            engine.post(asked(engines, f"r{seed}", *request))
        engine.run()
        for seed, request in requests.items():
            assert engine.tokens(f"r{seed}") == expected(engines, *request), request
        engine.assert_at_rest()

    @pytest.mark.parametrize("chunk", [64, 192, 1024])
    def test_chunks_change_nothing(self, engines: Engines, chunk: int) -> None:
        engine = engines.cold(chunk=chunk)
        engine.post(asked(engines, "r", 900, seed=4))
        engine.run()
        assert engine.tokens("r") == expected(engines, 900, 4)

    def test_a_fork_a_repeat_and_the_next_turn_resume_and_answer_alike(
        self, engines: Engines
    ) -> None:
        first = prompt(engines, 300, 1)
        branch = first[:200] + prompt(engines, 50, 2)
        answers, hits = [], []
        for engine in (engines.cold(), engines.oracle()):
            told = {
                name: engine.ask(name, tokens, 5)
                for name, tokens in (("first", first), ("repeat", first), ("branch", branch))
            }
            again = first + told["first"] + prompt(engines, 40, 3)
            for name in ("turn", "side"):
                engine.post(submit(name, again, 7))
            engine.run()
            told |= {name: engine.tokens(name) for name in ("turn", "side")}
            found = [engine.hit(name) for name in told]
            answers.append(told)
            hits.append([(hit.usable_tokens, hit.checkpoint_source) for hit in found])
            engine.assert_at_rest()
        assert answers[0] == answers[1] and hits[0] == hits[1]
        # The last sampled token was never forwarded: the state is one token before it.
        assert max(usable for usable, _ in hits[0]) == 304

    def test_stops_and_aborts_leave_exact_states(self, engines: Engines) -> None:
        engine = engines.cold()
        sampled = SamplingParams(max_new_tokens=12, temperature=40.0, seed=3, ignore_eos=True)
        asked = prompt(engines, 100, 5)
        engine.post(submit("whole", asked, 12, sampling=sampled))
        engine.post(submit("gone", prompt(engines, 400, 6), 30))
        engine.steps(5)
        engine.post(m.Abort(m.RequestId("gone")))
        engine.run()
        answer = engine.tokens("whole")
        stop = SamplingParams(12, temperature=40.0, seed=3, stop_token_ids=(answer[4],))
        engine.flush()
        told = engine.ask("stopped", asked, 12, sampling=stop)
        assert told == answer[: answer.index(answer[4]) + 1]
        assert engine.finished("stopped").reason is m.FinishReason.STOP
        turn = asked + told + prompt(engines, 9, 7)
        assert engine.ask("turn", turn, 6) == engines.oracle().ask("turn", turn, 6)
        assert engine.hit("turn").usable_tokens == 99 + len(told)
        engine.assert_at_rest()
