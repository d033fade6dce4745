"""Models shared by two GPUs have the tokens of the goldens in float32. Samplers, grammars and
drafts are as on a CPU. Also hand-overs between any two sizes, memory below the arenas, and the end
of a node after its other rank died."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tasuki.engine.parallel.ranks import RankLost
from tasuki.engine.tiers.tier import CPU_LINK
from tasuki.model.ops.sampling.params import SamplingParams
from tests.gpu import shapes
from tests.harness.engines import Lone, engine_config, submit
from tests.harness.goldens import BESIDE, QUANTISED, reference_dir
from tests.harness.random_checkpoint import write_random_model
from tests.harness.rank_engines import rank_engine
from tests.harness.rank_pairs import handed_over_as_goldens_have_it, on_gpus
from tests.harness.rank_play import as_goldens_have_it, constrained, golden_cases, play
from tests.harness.rank_tiers import goldens_come_back, goldens_come_back_from_disks

pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2 or not torch.cuda.can_device_access_peer(0, 1),
    reason="needs two GPUs of one host that can access each other",
)

ON_GPUS = {"device": "cuda", "tensor_parallel": 2, "max_batch": 4}
PLAY = {"arena_mib": 256, "prefill_chunk_tokens": 64, "max_batch": 4}
SECONDS = 20.0
GOLDENS = [name for name in ("tp4-dense", "tiny-dense") if (BESIDE / name).is_dir()]


@pytest.mark.parametrize("name", GOLDENS)
def test_goldens(name: str) -> None:
    as_goldens_have_it(name, 2, False, device="cuda", max_batch=4)


@pytest.mark.parametrize("by_expert", [False, True])
def test_experts(by_expert: bool) -> None:
    as_goldens_have_it("tiny-moe", 2, by_expert, device="cuda", max_batch=4)


@pytest.mark.parametrize("name", [name for name in QUANTISED if name == "tp4-dense-fp8"])
def test_quantised_weights(name: str) -> None:
    as_goldens_have_it(name, 2, False, device="cuda", max_batch=4)


@pytest.mark.parametrize("speculate", ["prediction", "mtp"])
def test_drafts(speculate: str) -> None:
    """Drafts are each golden answer's own tokens or the draft layer's guesses. Some requests sample
    with a temperature, or from the likeliest tokens."""
    cases = golden_cases("tp4-dense")
    drafts = {"speculate": speculate, "draft_tokens": 3, "prefill_chunk_tokens": 64}
    noisy = {"max_new_tokens": 12, "ignore_eos": True, "seed": 7, "temperature": 1.0}
    hot, top = SamplingParams(**noisy), SamplingParams(**noisy | {"top_k": 20})
    alone = Lone(engine_config(reference_dir("tp4-dense"), speculate="off"))
    with rank_engine(reference_dir("tp4-dense"), **ON_GPUS | drafts) as engine:
        for name, (prompt, greedy) in cases.items():
            given = np.array(greedy if speculate == "prediction" else (), dtype=np.int32)
            engine.post(submit(name, prompt, len(greedy), prediction=given))
        engine.run()
        for name, (_, greedy) in cases.items():
            assert engine.tokens(name) == greedy, name
            assert engine.finished(name).usage.drafted_tokens > 0
        for name, sampling in (("hot", hot), ("top", top)):
            for node in (alone, engine):
                node.post(submit(name, cases["long"][0], 0, sampling=sampling))
                node.run()
            assert engine.tokens(name) == alone.tokens(name), name
        engine.assert_at_rest()


def test_keys_and_values_as_fp8_rows(model: Path) -> None:
    prompt = np.random.default_rng(1).integers(3, shapes.VOCAB, 200).tolist()
    changes = {"kv_dtype": "fp8", "prefill_chunk_tokens": 64}
    expected = Lone(engine_config(model, **changes)).ask("r", prompt, 12)
    with rank_engine(model, **ON_GPUS | changes) as engine:
        assert engine.ask("r", prompt, 12) == expected


@pytest.mark.parametrize(("senders", "receivers"), [(2, 1), (1, 2), (2, 2)])
def test_hand_overs_and_pulls(senders: int, receivers: int) -> None:
    handed_over_as_goldens_have_it("tp4-dense", senders, receivers, on_gpus)


def test_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Loads are made cheap, because a GPU would otherwise compute so few tokens.
    monkeypatch.setattr("tasuki.engine.assembly.parts.GPU_LINK", CPU_LINK)
    goldens_come_back(device="cuda", max_batch=4)


def test_disks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GPU_LINK", "GPU_DISK_LINK"):
        monkeypatch.setattr(f"tasuki.engine.assembly.parts.{name}", CPU_LINK)
    goldens_come_back_from_disks(tmp_path, device="cuda", max_batch=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random")
    write_random_model(folder, shapes.dense_raw() | {"vocab_size": 1024})
    return folder


def test_samplers_and_turns(model: Path) -> None:
    expected = play(Lone(engine_config(model, **PLAY)), shapes.VOCAB)
    with rank_engine(model, **(PLAY | ON_GPUS)) as engine:
        assert play(engine, shapes.VOCAB) == expected


def test_a_grammar(model: Path) -> None:
    expected = constrained(Lone(engine_config(model)))
    with rank_engine(model, **ON_GPUS) as engine:
        assert constrained(engine) == expected
    assert len(expected) >= 5


def test_a_rank_that_is_killed_ends_the_node(model: Path) -> None:
    with pytest.raises(RankLost), rank_engine(model, **ON_GPUS) as engine:
        ranks = engine.parts.ranks
        assert ranks is not None
        engine.post(submit("long", [5, 6, 7], 4000))
        engine.steps(20)
        os.kill(ranks.pids[0], signal.SIGKILL)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            engine.step()
