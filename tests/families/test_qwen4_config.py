"""The config.json of Qwen4-Exp: what is read, and refusals by field name."""

from typing import Any

import pytest

from tasuki.model.config_json import ModelConfigError
from tasuki.model.families.qwen4_exp.config import OutputGate
from tasuki.model.layer_kind import LayerKind
from tests.harness.qwen4_models import odd_config, odd_raw

PUBLISHED: dict[str, Any] = {
    "vocab_size": 248_320,
    "hidden_size": 2560,
    "num_hidden_layers": 48,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 640,
    "shared_expert_intermediate_size": 640,
    "linear_num_value_heads": 48,
    "ple_layer_ids": [2],
    "split_ngram_parts": 128,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
    "output_gate_type": "sigmoid",
    "eos_token_id": 248_044,
}


def test_the_published_shape_is_read() -> None:
    config = odd_config({"model_type": "qwen4_exp", "text_config": PUBLISHED})
    assert config.layer_kinds.count(LayerKind.FULL) == 12
    assert config.layer_kinds[3] is LayerKind.FULL
    assert (config.index.chosen, config.index.most_dense) == (512, 2051)
    assert config.output_gate is OutputGate.SIGMOID
    (table,) = config.tables
    assert (table.layer, table.rows, table.dim, table.shards) == (1, 320_001_536, 160, 128)
    assert table.sizes[0] == 20_000_003
    assert config.table_window(table) == 9
    assert config.ids_before == 2
    assert config.end_of_text == 248_044


def test_index_rows_of_a_page_are_aligned() -> None:
    odd_config(odd_raw(indexer_compress_ratio=64, indexer_budget=64))
    with pytest.raises(ModelConfigError, match="indexer_head_dim is 20"):
        odd_config(odd_raw(indexer_compress_ratio=64, indexer_budget=64, indexer_head_dim=20))


def test_both_names_of_a_sparse_layer_are_read() -> None:
    kinds = odd_config(odd_raw()).layer_kinds
    assert [kind is LayerKind.FULL for kind in kinds] == [True, False, True, False, False]


def test_the_sizes_of_a_second_table_go_on() -> None:
    first, second = odd_config(odd_raw()).tables
    assert (first.layer, second.layer) == (1, 4)
    assert first.sizes == (53, 59, 61, 67, 71, 73)
    assert second.sizes[0] == 79
    assert first.multipliers != second.multipliers


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("indexer_kv_heads", 2),
        ("indexer_budget", 20),
        ("indexer_compress_ratio", 12),
        ("indexer_compress_ratio", 1),
        ("indexer_head_dim", 8),
        ("indexer_n_heads", None),
        ("indexer_budget", None),
        ("ple_layer_ids", [3]),
        ("ple_layer_ids", [6]),
        ("ple_layer_ids", "2"),
        ("ple_embed_dim", 35),
        ("ngram_size", 1),
        ("ngram_size", 10**6),
        ("heads_per_ngram", 10**7),
        ("ngram_vocab_size_base", 10**18),
        ("hc_count", 10**9),
        ("num_experts", 10**9),
        ("ple_conv_kernel_size", 1),
        ("hc_count", 1),
        ("eos_token_id", None),
        ("eos_token_id", 97),
        ("seed", -1),
        ("output_gate_type", "tanh"),
        ("layer_types", ["linear_attention"] * 5),
        ("layer_types", ["sliding_attention"] * 5),
        ("num_attention_heads", 5),
        ("linear_num_value_heads", 5),
        ("num_experts_per_tok", 7),
        ("partial_rotary_factor", 0.125),
        ("hidden_act", "gelu"),
        ("attn_output_gate", False),
        ("norm_topk_prob", False),
        ("attention_bias", True),
    ],
)
def test_a_config_that_is_not_computed_is_refused_by_field(field: str, value: object) -> None:
    odd_config(odd_raw())
    with pytest.raises(ModelConfigError, match=rf"^some file: {field} "):
        odd_config(odd_raw(**{field: value}), "some file")
