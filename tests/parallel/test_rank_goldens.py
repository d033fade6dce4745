"""Every greedy token of every golden whose heads divide, and other kinds of requests, through an
engine of several ranks: tokens equal to one rank's."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tasuki.model.config import MoeShape
from tasuki.model.families.loading import head_block
from tasuki.model.families.qwen3_5.cuts import Qwen35Cuts
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.quantise.checkpoint import fp8_block
from tasuki.model.weights.shard import ExpertCut
from tests.harness.engines import Lone, engine_config, submit
from tests.harness.goldens import BESIDE, MODELS, OWN_MODELS, QUANTISED, reference_dir
from tests.harness.model_shapes import dense_raw, moe_raw
from tests.harness.qwen35 import load_config
from tests.harness.random_checkpoint import write_random_model, write_random_weights
from tests.harness.rank_engines import rank_engine
from tests.harness.rank_play import as_goldens_have_it, constrained, play

GOLDENS = [
    *(name for name in MODELS if name not in OWN_MODELS),
    *(name for name in ("tp4-dense", *QUANTISED) if (BESIDE / name).is_dir()),
]
BLOCKS_CUT = {"moe-fp8"}
"""Models with heads of 64 in blocks of 128: rejected (tests/model/test_sharding.py)."""
SETTINGS = [
    (name, ranks, cut is ExpertCut.BY_EXPERT)
    for name in GOLDENS
    if name not in BLOCKS_CUT
    for config in [load_config(reference_dir(name))]
    for cut in ExpertCut
    if cut is ExpertCut.BY_WIDTH or isinstance(config.feed_forward, MoeShape)
    for ranks in Qwen35Cuts(config).fitting_sizes(cut)
    if ranks in (2, 4)
]
QUICK = [
    setting for setting in SETTINGS if setting in (("tp4-dense", 2, False), ("tiny-moe", 2, True))
]
SLOW = [setting for setting in SETTINGS if setting not in QUICK]


@pytest.mark.parametrize(("name", "ranks", "expert_parallel"), QUICK)
def test_goldens(name: str, ranks: int, expert_parallel: bool) -> None:
    as_goldens_have_it(name, ranks, expert_parallel)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "expert_parallel"), SLOW)
def test_other_goldens(name: str, ranks: int, expert_parallel: bool) -> None:
    as_goldens_have_it(name, ranks, expert_parallel)


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random")
    write_random_model(folder)
    return folder


def test_samplers_turns_and_drafts(random_model: Path) -> None:
    settings = {"arena_mib": 4, "prefill_chunk_tokens": 64}
    expected = play(Lone(engine_config(random_model, **settings)), 1024)
    with rank_engine(random_model, tensor_parallel=2, **settings) as engine:
        assert play(engine, 1024) == expected
        assert engine.finished("predicted").usage.accepted_tokens > 4
    assert all(len(tokens) >= 6 for tokens in expected.values())
    assert len({tuple(tokens) for tokens in expected.values()}) > 6


def test_a_grammar(random_model: Path) -> None:
    expected = constrained(Lone(engine_config(random_model)))
    with rank_engine(random_model, tensor_parallel=2) as engine:
        assert constrained(engine) == expected
    assert len(expected) >= 5


def test_a_head_whose_blocks_no_cut_parts_is_whole_on_every_rank(tmp_path: Path) -> None:
    model = write_random_weights(tmp_path, dense_raw())
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    coded = fp8_block(tensors.pop("lm_head.weight"))
    save_file(tensors | {f"lm_head.{name}": values for name, values in coded.items()}, file)
    assert head_block(tmp_path, model) == 128 and model.vocab % (2 * 128)
    prompt = np.random.default_rng(1).integers(3, 160, 100).tolist()
    noisy = SamplingParams(max_new_tokens=12, temperature=1.0, seed=5)
    found = []
    with rank_engine(tmp_path, tensor_parallel=2) as engine:
        for node in (Lone(engine_config(tmp_path)), engine):
            node.post(submit("noisy", prompt[:20], 0, sampling=noisy))
            found.append((node.ask("r", prompt, 12), node.tokens("noisy")))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["dense", "moe", "moe by expert"])
def test_unequal_sizes_everywhere(kind: str, tmp_path: Path) -> None:
    write_random_weights(tmp_path, dense_raw() if kind == "dense" else moe_raw())
    prompt = np.random.default_rng(1).integers(3, 160, 100).tolist()
    expected = Lone(engine_config(tmp_path)).ask("r", prompt, 12)
    more = {"expert_parallel": kind.endswith("expert")}
    with rank_engine(tmp_path, tensor_parallel=2, **more) as engine:
        assert engine.ask("r", prompt, 12) == expected
