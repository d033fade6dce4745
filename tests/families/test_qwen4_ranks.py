"""Two ranks of Qwen4-Exp as threads: whole parts have the same bits on both, ties included."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tasuki.model.families.family import Assembly
from tasuki.model.families.loading import load_weights
from tasuki.model.families.qwen4_exp.cuts import Qwen4ExpCuts
from tasuki.model.families.qwen4_exp.stack.model import Qwen4ExpModel
from tasuki.model.families.qwen4_exp.weights import ModelWeights
from tasuki.model.weights.shard import ExpertCut, Shard, UnfitSize
from tests.harness.qwen4_models import (
    PAGED,
    OwnSequence,
    config_of,
    load_model,
    odd_raw,
    write_model,
)
from tests.model.test_two_ranks import ThreadExchange

WHOLE = ("index", "index_window", "ple_window", "carry")


def rank_models(folder: Path, experts: ExpertCut) -> tuple[ThreadExchange, list[Qwen4ExpModel]]:
    """Return both ranks' models, each with its own slices of the files."""
    config, exchange, models = config_of(folder), ThreadExchange(2), []
    for rank in range(2):
        shard = Shard(rank, 2, experts)
        weights = load_weights(folder, config, torch.float32, shard=shard)
        assert isinstance(weights, ModelWeights)
        assembly = Assembly(reduce=exchange.sum_of(rank), gather=exchange.gather_of(rank))
        models.append(Qwen4ExpModel(Qwen4ExpCuts(config).part(shard), weights, assembly))
    return exchange, models


@pytest.mark.parametrize("experts", list(ExpertCut))
def test_ranks_choose_alike_to_the_last_bit(tmp_path: Path, experts: ExpertCut) -> None:
    random.seed(5)
    tokens = [9] * 40 + [random.choice((9, 11, 12)) for _ in range(90)]
    # One index head scores exactly 0 half of the time, so ties decide.
    write_model(tmp_path, odd_raw(indexer_n_heads=1))
    alone = OwnSequence(load_model(tmp_path))
    expected = [alone.forward(tokens), alone.forward([7]), alone.drafted(8)]
    exchange, models = rank_models(tmp_path, experts)
    sequences = [OwnSequence(model) for model in models]

    def run(sequence: OwnSequence) -> list[torch.Tensor]:
        try:
            return [sequence.forward(tokens), sequence.forward([7]), sequence.drafted(8)]
        except BaseException:
            exchange.broken()
            raise

    with ThreadPoolExecutor(2) as threads:
        found = [*threads.map(run, sequences)]
    for own, other, want in zip(*found, expected, strict=True):
        assert torch.equal(own, other)
        assert float((own - want).abs().max()) < 1e-3
    compared = 0
    for own, other in zip(*(sequence.views for sequence in sequences), strict=True):
        for name in set(own) & set(WHOLE):
            ids = sequences[0].pages if name in PAGED else sequences[0].slots
            # Rows that nobody wrote are NaN, so bytes are compared.
            mine, theirs = (view[name][ids].view(torch.uint8) for view in (own, other))
            assert torch.equal(mine, theirs), name
            compared += 1
    assert compared == 2 * 2 + 2 + 3


def test_a_rank_has_half_of_the_heads_and_all_of_the_streams(tmp_path: Path) -> None:
    write_model(tmp_path, odd_raw())
    config = config_of(tmp_path)
    part = Qwen4ExpCuts(config).part(Shard(1, 2, ExpertCut.BY_EXPERT))
    assert (part.query_heads, part.kv_heads, part.value_heads) == (3, 1, 3)
    assert (part.streams, part.index, part.tables) == (config.streams, config.index, config.tables)
    whole, own = (each.cache_layout("float32", "float32", "float32") for each in (config, part))
    for layer, mine in zip(whole.layers, own.layers, strict=True):
        assert [item.of_rank(2, 1) for item in (*layer.page, *layer.slot)] == [
            *mine.page,
            *mine.slot,
        ]


def test_sizes_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path, odd_raw(num_experts=5))
    with pytest.raises(UnfitSize, match="5 experts"):
        Qwen4ExpCuts(config_of(tmp_path)).part(Shard(0, 2, ExpertCut.BY_EXPERT))
