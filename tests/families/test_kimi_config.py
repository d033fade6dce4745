"""Kimi Linear's config.json: its shape, and refusals that name the field."""

from typing import Any

import pytest
import torch

from tasuki.model.config_json import ConfigFile, ModelConfigError
from tasuki.model.costs import ShapesOnly
from tasuki.model.families.kimi_linear.config import Mixer
from tasuki.model.families.kimi_linear.costs import prefill_flops, weight_sizes
from tasuki.model.families.kimi_linear.cuts import KimiCuts
from tasuki.model.families.kimi_linear.reader import read_config
from tasuki.model.weights.matrix import WeightsError
from tasuki.model.weights.shard import ExpertCut, Shard, UnfitSize
from tests.families.kimi_runs import ODD, random_tensors

PUBLISHED: dict[str, Any] = ODD | {
    "vocab_size": 163840,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 27,
    "first_k_dense_replace": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [n for n in range(1, 27) if n % 4],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "moe_intermediate_size": 1024,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "routed_scaling_factor": 2.446,
    "model_max_length": 1048576,
}
"""Published shape of 48B parameters, 3B of them for each token."""


def read(raw: dict[str, Any]) -> Any:
    return read_config(ConfigFile.of(raw))


def linear(**changes: object) -> dict[str, Any]:
    return {"linear_attn_config": ODD["linear_attn_config"] | changes}


def test_published_shape() -> None:
    config = read(PUBLISHED)
    assert config.mixers.count(Mixer.KDA) == 20
    assert [n for n, kind in enumerate(config.mixers) if kind is Mixer.LATENT] == [
        *(3, 7, 11, 15, 19, 23, 26)
    ]
    assert config.latent.row == 576
    assert config.latent.query_dim == 192
    assert config.conv_channels == 3 * 4096
    assert config.max_position == 1048576
    # 48 B parameters, 3 B of them active with the embedding's and the head's rows.
    sizes = weight_sizes(config, torch.bfloat16, ShapesOnly())
    assert 48e9 < sizes.total / 2 < 50e9
    assert 3.0e9 < sizes.step_bytes(1) / 2 < 3.2e9
    assert 2.7e9 < prefill_flops(config).linear / 2 < 2.9e9


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"q_lora_rank": 1536}, "q_lora_rank"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"mla_use_nope": False}, "mla_use_nope"),
        ({"mla_use_nope": None}, "mla_use_nope"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"moe_renormalize": False}, "moe_renormalize"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
        ({"num_expert_group": 8}, "num_expert_group"),
        ({"topk_group": 4}, "topk_group"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ({"num_experts_per_token": 7}, "num_experts_per_token"),
        ({"num_experts": None}, "num_experts"),
        ({"num_shared_experts": 0}, "num_shared_experts"),
        ({"first_k_dense_replace": 5}, "first_k_dense_replace"),
        ({"kv_lora_rank": None}, "kv_lora_rank"),
        ({"linear_attn_config": None}, "linear_attn_config"),
        (linear(short_conv_kernel_size=1), "linear_attn_config.short_conv_kernel_size"),
        (linear(kda_layers=[1, 3]), "linear_attn_config.kda_layers"),
        (linear(kda_layers=[1, 2, 3, 4]), "linear_attn_config.full_attn_layers"),
        (linear(kda_layers=[0, 1, 3, 4]), "linear_attn_config.kda_layers"),
        (linear(kda_layers="1, 3, 4"), "linear_attn_config.kda_layers"),
        (linear(full_attn_layers=[]), "linear_attn_config.full_attn_layers"),
        (linear(head_dim=0), "linear_attn_config.head_dim"),
        ({"model_max_length": "long"}, "model_max_length"),
    ],
)
def test_refusals_name_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelConfigError, match=rf"config: {field} "):
        read(ODD | changes)


@pytest.mark.parametrize("experts", list(ExpertCut))
@pytest.mark.parametrize("ranks", [1, 2])
def test_shares_of_ranks_make_up_every_tensor(ranks: int, experts: ExpertCut) -> None:
    cuts = KimiCuts(read(ODD))
    shards = [Shard(rank, ranks, experts) for rank in range(ranks)]
    held: dict[int, int] = {}
    for published, tensor in random_tensors(ODD).items():
        name = published.removeprefix("model.")
        owners = [shard for shard in shards if not cuts.is_elsewhere(shard, name)]
        found = [cuts.cut(shard, name) for shard in owners]
        if len(owners) < ranks:
            assert len(owners) == 1 and found == [None]
            held[owners[0].rank] = held.get(owners[0].rank, 0) + 1
            continue
        spans = [cut.spans for cut in found if cut is not None]
        assert len(spans) in (0, ranks)
        if spans:
            covered = sorted(row for span in spans for part in span for row in part)
            cut = found[0]
            assert cut is not None
            assert cut.size == tensor.shape[cut.dim]
            assert covered == list(range(cut.size))
    if ranks == 2 and experts is ExpertCut.BY_EXPERT:
        assert held[0] == held[1] == 3 * 3 * 3


def test_part_of_a_rank_has_its_heads_and_all_latents() -> None:
    config = read(ODD)
    part = KimiCuts(config).part(Shard(1, 2))
    assert (part.kda_heads, part.latent.heads, part.latent.row) == (2, 3, 48)
    assert (part.experts.intermediate, part.experts.shared, part.intermediate) == (10, 20, 36)
    assert part.gate_rank == config.gate_rank == 24
    assert KimiCuts(config).part(Shard(1, 2, ExpertCut.BY_EXPERT)).experts.own == range(3, 6)


def test_unfit_numbers_of_ranks_are_refused() -> None:
    cuts = KimiCuts(read(ODD))
    with pytest.raises(UnfitSize, match=r"it has 6 heads of latent attention; give .* 1, 2"):
        cuts.part(Shard(0, 4))
    with pytest.raises(UnfitSize, match=r"it has 4 heads of KDA layers"):
        cuts.part(Shard(0, 3))


def test_unknown_weights_are_not_cut() -> None:
    with pytest.raises(WeightsError, match=r"layers\.0\.self_attn\.z_proj"):
        KimiCuts(read(ODD)).cut(Shard(0, 2), "layers.0.self_attn.z_proj.weight")
