"""The slices of a model on each rank: every element once, and heads with all their parts."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tasuki.model.config import DeltaNetConfig, MoeShape
from tasuki.model.families.qwen3_5.cuts import Qwen35Cuts
from tasuki.model.families.qwen3_5.published import PUBLISHED
from tasuki.model.families.qwen3_5.weights import assemble
from tasuki.model.quantise.checkpoint import RECIPES, quantise_folder
from tasuki.model.weights.layers import MoeWeights, tensors
from tasuki.model.weights.matrix import WHOLE, BlockCut, Matrix, Part, WeightsError
from tasuki.model.weights.safetensors_folder import Checkpoint
from tasuki.model.weights.shard import Cut, ExpertCut, Shard, UnfitSize
from tasuki.model.weights.source import PlainSource, ShardedSource
from tasuki.pycache.parts import share
from tests.harness.covering import slow_behind
from tests.harness.goldens import MODELS, QUANTISED, reference_dir
from tests.harness.model_shapes import DENSE, MOE, moe_raw
from tests.harness.qwen35 import load_config, load_weights, published_or_folder
from tests.harness.random_checkpoint import write_random_weights

SIZES = (1, 2, 4, 8)
WIDTH, EXPERT = ExpertCut.BY_WIDTH, ExpertCut.BY_EXPERT


class Shapes(PlainSource):
    """A source of every tensor without memory; it records their shapes."""

    def __init__(self, fused: bool = True) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._fused = fused

    def has(self, name: str) -> bool:
        return self._fused or not name.endswith(("experts.gate_up_proj", "gate_proj.0.weight"))

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        self.shapes[name] = shape
        return torch.empty(shape, dtype=dtype, device="meta")[part]


def published(name: str) -> DeltaNetConfig:
    """Return a config with one layer of each kind, and a draft layer."""
    config = published_or_folder(name)
    return replace(config, layer_kinds=config.layer_kinds[2:4], draft_layers=1)


def owners(cuts: list[Cut]) -> tuple[int, set[int]]:
    """Return (number of elements on any rank, numbers of ranks with the same element)."""
    edges: Counter[int] = Counter()
    for cut in cuts:
        for span in cut.spans:
            edges[span.start] += 1
            edges[span.stop] -= 1
    depth, before, covered, depths = 0, 0, 0, set()
    for place in sorted(edges):
        if depth:
            covered += place - before
            depths.add(depth)
        depth, before = depth + edges[place], place
    return covered, depths


CUTS = {
    f"{name}-{experts.value}-{'fused' if fused else 'split'}": (name, experts, fused)
    for name, experts, fused in (
        *(("35b-a3b", experts, fused) for fused in (True, False) for experts in ExpertCut),
        *((name, WIDTH, True) for name in ("27b", *PUBLISHED)),
        *((name, EXPERT, True) for name in PUBLISHED if "-a" in name),
    )
}
"""One of each kind first."""


@pytest.mark.parametrize(("name", "experts", "fused"), slow_behind(5, CUTS))
def test_ranks_have_each_element_of_each_weight_once(
    name: str, experts: ExpertCut, fused: bool
) -> None:
    config = published(name)
    whole = Shapes(fused)
    assemble(config, whole, torch.float32, "meta")
    for ranks in SIZES:
        shards = [Shard(rank, ranks, experts) for rank in range(ranks)]
        # It asks for the rank's own shapes; a cut with another shape is rejected.
        asked = Shapes(fused)
        own = ShardedSource(asked, Qwen35Cuts(config), shards[-1])
        assemble(Qwen35Cuts(config).part(shards[-1]), own, torch.float32, "meta")
        assert asked.shapes.items() <= whole.shapes.items()
        assert {
            weight
            for weight in whole.shapes
            if not Qwen35Cuts(config).is_elsewhere(shards[-1], weight)
        } == {*asked.shapes}
        kinds: set[str] = set()
        for weight, shape in whole.shapes.items():
            having = [
                shard for shard in shards if not Qwen35Cuts(config).is_elsewhere(shard, weight)
            ]
            cuts = [cut for shard in having if (cut := Qwen35Cuts(config).cut(shard, weight))]
            if not cuts:
                one_expert = experts is EXPERT and ".experts." in weight
                assert len(having) == (1 if one_expert else ranks), weight
                continue
            kinds.add(weight.removesuffix(".weight").split(".")[-1])
            copied = weight.endswith(("k_proj.weight", "v_proj.weight"))
            copies = max(1, ranks // config.kv_heads) if copied else 1
            assert owners(cuts) == (shape[cuts[0].dim], {copies}), weight
            assert len(cuts) == ranks and {cut.size for cut in cuts} == {shape[cuts[0].dim]}
        always = {
            "in_proj_qkv",
            "in_proj_z",
            "in_proj_b",
            "in_proj_a",
            "conv1d",
            "A_log",
            "dt_bias",
        }
        always |= {"out_proj", "q_proj", "k_proj", "v_proj", "o_proj", "down_proj"}
        assert kinds >= always | ({"lm_head"} if ranks > 1 and not config.tied else set())


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("ranks", SIZES)
def test_heads_stay_with_what_belongs_to_them(name: str, ranks: int) -> None:
    config = published(name)
    for rank in range(ranks):
        shard = Shard(rank, ranks)
        keys, values = shard.of(config.key_heads), shard.of(config.value_heads)
        queries, kv = shard.of(config.query_heads), shard.of(config.kv_heads)
        part = Qwen35Cuts(config).part(shard)
        for local, value in enumerate(values):
            key = value // (config.value_heads // config.key_heads)
            assert keys[local // (part.value_heads // part.key_heads)] == key
        for local, query in enumerate(queries):
            head = query // (config.query_heads // config.kv_heads)
            assert kv[local // (part.query_heads // part.kv_heads)] == head
        rows = Qwen35Cuts(config).cut(shard, "layers.1.self_attn.q_proj.weight")
        assert rows is not None
        width = 2 * config.head_dim
        assert rows.spans == (range(queries.start * width, queries.stop * width),)
        q, k, v = Qwen35Cuts(config).cut(shard, "layers.0.linear_attn.conv1d.weight").spans  # type: ignore[union-attr]
        border = config.key_heads * config.key_dim
        assert (q.start, k.start) == (keys.start * 128, border + keys.start * 128)
        assert (v.start, len(v)) == (2 * border + values.start * 128, len(values) * 128)


@pytest.mark.parametrize(
    ("name", "sizes", "by_expert"),
    [
        ("0.8b", [1, 2, 4, 8], None),
        ("9b", [1, 2, 4, 8, 16], None),
        ("27b", [1, 2, 4, 8], None),
        ("35b-a3b", [1, 2, 4, 8, 16], [1, 2, 4, 8, 16]),
        ("397b-a17b", [1, 2, 4, 8, 16], [1, 2, 4, 8, 16]),
    ],
)
def test_sizes_that_fit(name: str, sizes: list[int], by_expert: list[int] | None) -> None:
    config = published_or_folder(name)
    assert Qwen35Cuts(config).fitting_sizes(WIDTH) == sizes
    if by_expert is not None:
        assert Qwen35Cuts(config).fitting_sizes(EXPERT) == by_expert


def test_a_refused_size_names_those_that_would_do() -> None:
    with pytest.raises(UnfitSize, match=r"3 ranks: it has 16 query heads; .* one of 1, 2, 4, 8, 1"):
        Qwen35Cuts(published_or_folder("9b")).part(Shard(0, 3))
    with pytest.raises(UnfitSize, match=r"16 ranks: it has 24 query heads; .* one of 1, 2, 4, 8$"):
        Qwen35Cuts(published_or_folder("27b")).part(Shard(0, 16))
    odd = replace(MOE, feed_forward=MoeShape(6, 2, 21, 28))
    with pytest.raises(
        UnfitSize, match=r"columns of an expert; .* 1, or these with --expert-p.*1, 2"
    ):
        Qwen35Cuts(odd).part(Shard(0, 2))
    assert Qwen35Cuts(odd).part(Shard(1, 2, EXPERT)).feed_forward == MoeShape(
        6, 2, 21, 14, range(3, 6)
    )
    uneven = replace(DENSE, kv_heads=4, query_heads=12, key_heads=6, value_heads=6)
    uneven = replace(uneven, feed_forward=replace(uneven.feed_forward, intermediate=72))
    with pytest.raises(UnfitSize, match="4 heads of keys and values"):
        Qwen35Cuts(uneven).part(Shard(0, 6))


def test_a_dense_model_has_no_experts_to_share_out() -> None:
    with pytest.raises(UnfitSize, match="no experts to share out: leave --expert-parallel out"):
        Qwen35Cuts(published_or_folder("9b")).part(Shard(0, 2, EXPERT))


def test_a_head_is_cut_between_what_shares_a_scale_or_not_at_all() -> None:
    config = published_or_folder("9b")
    heads = [replace(config, head_block=block) for block in (1, 128)]
    assert [Qwen35Cuts(head).part(Shard(1, 4)).head_rows for head in heads] == [
        range(62080, 124160)
    ] * 2
    assert [Qwen35Cuts(head).part(Shard(1, 8)).head_rows for head in heads] == [
        range(31040, 62080),
        None,
    ]
    name = "lm_head.weight"
    assert (
        Qwen35Cuts(heads[0]).cut(Shard(1, 8), name)
        and Qwen35Cuts(heads[1]).cut(Shard(1, 8), name) is None
    )


def test_a_share_is_even_or_a_copy() -> None:
    assert [share(8, 4, rank) for rank in range(4)] == [
        range(0, 2), range(2, 4), range(4, 6), range(6, 8),
    ]  # fmt: skip
    assert [share(2, 4, rank) for rank in range(4)] == [
        range(1),
        range(1),
        range(1, 2),
        range(1, 2),
    ]
    with pytest.raises(ValueError, match="6 segments cannot be shared out evenly among 4 ranks"):
        share(6, 4, 0)


def test_what_nobody_knows_how_to_cut_is_refused() -> None:
    with pytest.raises(WeightsError, match=r"layers\.0\.self_attn\.sinks is of no kind"):
        Qwen35Cuts(DENSE).cut(Shard(0, 2), "layers.0.self_attn.sinks")


def values(weights: object) -> list[Tensor]:
    return [*tensors(weights)]


SLICED = [
    case
    for case in (
        ("tiny-moe", 2, EXPERT),
        ("tp4-dense-fp8", 4, WIDTH),
        ("moe-nvfp4-ct", 2, WIDTH),
        ("moe-nvfp4-ct", 2, EXPERT),
    )
    if case[0] in MODELS + QUANTISED
]


@pytest.mark.parametrize(("name", "ranks", "experts"), SLICED)
def test_a_rank_reads_what_the_whole_has_there(name: str, ranks: int, experts: ExpertCut) -> None:
    """Dequantised, bit by bit; a fused projection's parts end to end."""
    folder = reference_dir(name)
    config = load_config(folder)
    float32 = torch.float32

    class Dequantised(ShardedSource):
        """A source that reads whole tensors and cuts them, instead of reading slices."""

        def matrix(
            self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
        ) -> Matrix:
            cut = Qwen35Cuts(config).cut(shard, name)
            if cut is None:
                return Matrix.of(files.read(name, shape, dtype))
            whole = files.read(name, cut.whole(shape), dtype)
            return Matrix.of(torch.cat([whole[own] for own in cut.parts], cut.dim))

    with Checkpoint(folder) as files:
        for rank in range(ranks):
            shard = Shard(rank, ranks, experts)
            want = assemble(
                Qwen35Cuts(config).part(shard),
                Dequantised(files, Qwen35Cuts(config), shard),
                float32,
            )
            got = load_weights(folder, config, float32, shard=shard)
            for left, right in zip(got.layers, want.layers, strict=True):
                for name in ("in_proj", "out_proj"):
                    a, b = getattr(left.mixer, name), getattr(right.mixer, name)
                    assert torch.equal(a.dequantised(float32), b.dequantised(float32)), name
                pairs = [(left.mlp, right.mlp)]
                if isinstance(left.mlp, MoeWeights):
                    assert isinstance(right.mlp, MoeWeights)
                    pairs = [(left.mlp.shared, right.mlp.shared)]  # type: ignore[list-item]
                    assert left.mlp.down.shape == right.mlp.down.shape
                    for expert in range(left.mlp.down.shape[0]):
                        for name in ("gate_up", "down"):
                            a = getattr(left.mlp, name)[expert].dequantised(float32)
                            b = getattr(right.mlp, name)[expert].dequantised(float32)
                            assert torch.equal(a, b), (expert, name)
                for mine, whole in pairs:
                    for name in ("gate_up", "down"):
                        a, b = getattr(mine, name), getattr(whole, name)
                        assert torch.equal(a.dequantised(float32), b.dequantised(float32)), name


@pytest.mark.parametrize("name", [name for name in QUANTISED if name == "moe-fp8"])
def test_blocks_are_not_cut_and_the_sizes_that_would_do_are_named(name: str) -> None:
    folder = reference_dir(name)
    config = load_config(folder)
    with pytest.raises(BlockCut, match=r"in_proj_qkv.* is for 128.*--tensor-parallel one of 1$"):
        load_weights(folder, config, torch.float32, shard=Shard(0, 2))


def test_a_cut_expert_names_expert_parallel(tmp_path: Path) -> None:
    raw = moe_raw()
    raw["text_config"] |= {"moe_intermediate_size": 48, "shared_expert_intermediate_size": 64}
    config = write_random_weights(tmp_path / "plain", raw)
    quantise_folder(tmp_path / "plain", tmp_path / "q", RECIPES["nvfp4"])
    with pytest.raises(BlockCut, match="one of 1, or --expert-parallel, which cuts no expert"):
        load_weights(tmp_path / "q", config, torch.float32, shard=Shard(0, 2))
    load_weights(tmp_path / "q", config, torch.float32, shard=Shard(1, 2, EXPERT))
