"""Kimi Linear served from checkpoints of odd shapes: engines, ranks and layouts against a naive
forward; refusals of what a family without kernels cannot serve."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tasuki.engine.assembly.parts import build_parts
from tasuki.model.config_json import ConfigFile, ModelConfigError
from tasuki.model.families.kimi_linear.config import KimiConfig
from tasuki.model.families.kimi_linear.cuts import KimiCuts
from tasuki.model.families.kimi_linear.reader import read_config
from tasuki.model.weights.shard import Shard
from tasuki.pycache.layout import rank_layout
from tests.families.kimi_reference import NaiveKimi
from tests.families.kimi_runs import ODD, odd_shape, write_random_kimi
from tests.families.test_kimi_config import PUBLISHED
from tests.harness.daemons import asked
from tests.harness.engines import Lone, engine_config
from tests.harness.rank_engines import rank_engine
from tests.harness.rank_pairs import pair_of
from tests.harness.running_nodes import require_nixl

ANSWER = 12


def config_of(raw: dict[str, Any]) -> KimiConfig:
    return read_config(ConfigFile.of(raw))


def naive_answer(naive: NaiveKimi, prompt: list[int]) -> list[int]:
    """Return the greedy answer of a naive forward, one whose choices are clear."""
    logits = torch.stack([naive.token(token) for token in prompt])[-1]
    answer = []
    for _ in range(ANSWER):
        best = logits.topk(2)
        assert float(best.values[0] - best.values[1]) > 0.01, "the checkpoint has a near tie"
        answer.append(int(best.indices[0]))
        logits = naive.token(answer[-1])
    return answer


@pytest.mark.parametrize("dim", [24, 40, 48])
def test_odd_checkpoints_answer_as_a_naive_forward(tmp_path: Path, dim: int) -> None:
    raw = odd_shape(dim) | {"eos_token_id": None}
    tensors = write_random_kimi(tmp_path / "model", raw)
    generator = torch.Generator().manual_seed(dim + 1)
    prompt = torch.randint(97, (131,), generator=generator).tolist()
    expected = naive_answer(NaiveKimi(raw, tensors), prompt)
    engine = Lone(engine_config(tmp_path / "model", prefill_chunk_tokens=64))
    assert engine.ask("cold", prompt, ANSWER) == expected
    assert engine.ask("hit", prompt, ANSWER) == expected
    for position in (1, 63, 64, 65, 100, 128, 130):
        engine.flush()
        engine.ask(f"to {position}", prompt[:position], 1)
        assert engine.ask(f"from {position}", prompt, ANSWER) == expected, position
        assert engine.hit(f"from {position}").usable_tokens == position
    engine.assert_at_rest()
    for experts in (False, True):
        settings = {"tensor_parallel": 2, "expert_parallel": experts}
        with rank_engine(tmp_path / "model", **settings) as ranks:
            assert ranks.ask("ranks", prompt, ANSWER) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "senders", "receivers"), [(24, 1, 2), (40, 2, 1), (48, 1, 1)])
def test_odd_checkpoints_are_handed_over(
    tmp_path: Path, dim: int, senders: int, receivers: int
) -> None:
    require_nixl()
    raw = odd_shape(dim) | {"eos_token_id": None}
    tensors = write_random_kimi(tmp_path / "model", raw)
    prompt = [token % 97 for token in range(5, 5 + 7 * 150, 7)]
    expected = naive_answer(NaiveKimi(raw, tensors), prompt)
    with pair_of(str(tmp_path / "model"), senders, receivers) as (prefill, decode):
        answer = asked(decode, tuple(prompt), b"", ANSWER).result()
        assert list(answer.token_ids) == expected
        assert answer.usage.prefilled_on == "prefill" and not answer.usage.local_fallback
        for node in (prefill, decode):
            node.assert_at_rest()


def test_published_layout() -> None:
    config = config_of(PUBLISHED)
    layout = config.cache_layout("bfloat16", "bfloat16", "float32")
    assert layout.block_bytes == 64 * 576 * 2
    assert layout.page_bytes == 7 * 72 * 1024
    state = 32 * 128 * 128 * 4 + 3 * 4096 * 3 * 2
    assert layout.slot_bytes == 20 * state
    own = KimiCuts(config).part(Shard(1, 4)).cache_layout("bfloat16", "bfloat16", "float32")
    assert own == rank_layout(layout, 4, 1)
    assert own.page_bytes == layout.page_bytes
    assert own.slot_bytes == layout.slot_bytes // 4


def test_latents_are_not_kept_as_fp8_rows() -> None:
    with pytest.raises(ModelConfigError, match="--kv-dtype is fp8, and latents"):
        config_of(ODD).cache_layout("fp8", "float32", "float32")


def test_a_gpu_is_refused_by_the_familys_name(tmp_path: Path) -> None:
    write_random_kimi(tmp_path / "model", ODD)
    config = engine_config(tmp_path / "model", device="cuda")
    with pytest.raises(ModelConfigError, match="Kimi Linear has no kernels for cuda"):
        build_parts(config)
    with (
        pytest.raises(ModelConfigError, match="Kimi Linear has no kernels for cuda"),
        rank_engine(tmp_path / "model", device="cuda", tensor_parallel=2),
    ):
        pass
