"""Models that two GPUs share: tokens of the goldens in float32, samplers and grammars as on a
CPU, and the end of a node whose other rank is gone."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from tasuki.engine import messages as m
from tasuki.engine.parallel.ranks import RankLost
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.ops.sampling.params import SamplingParams
from tests.gpu import shapes
from tests.harness.engines import Lone, engine_config, submit
from tests.harness.goldens import BESIDE
from tests.harness.random_checkpoint import write_random_weights
from tests.harness.rank_engines import rank_engine
from tests.harness.rank_play import as_goldens_have_it, play

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


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random")
    write_random_weights(folder, shapes.dense_raw())
    return folder


def test_samplers_and_turns(model: Path) -> None:
    expected = play(Lone(engine_config(model, **PLAY)), shapes.VOCAB)
    with rank_engine(model, **(PLAY | ON_GPUS)) as engine:
        assert play(engine, shapes.VOCAB) == expected


def test_a_grammar(model: Path) -> None:
    grammar = Grammar(GrammarKind.REGEX, "[a-e]{3}x[0-9]{8}")
    sampling = SamplingParams(max_new_tokens=30, temperature=1.0, seed=3, grammar=grammar)
    found = []
    with rank_engine(model, **ON_GPUS) as engine:
        for node in (Lone(engine_config(model)), engine):
            node.post(submit("r", [5, 6, 7], 0, sampling=sampling))
            node.engine._grammars.wait()
            while not node.all_said(m.Finished):
                node.step()
                node.engine._grammars.wait()
            found.append(node.tokens("r"))
    assert found[0] == found[1]


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
