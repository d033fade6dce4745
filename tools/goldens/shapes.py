"""The shapes of the golden models and the prompts given to them. Pure values."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """One prompt. states_at: prompt lengths with stored caches. extends: name of the case with a
    prompt this one begins with. hidden: True if every layer's output is stored too. end: True if
    the caches after the answer are stored too."""

    name: str
    prompt_tokens: int
    steps: int
    states_at: tuple[int, ...] = ()
    extends: str | None = None
    hidden: bool = False
    end: bool = False


@dataclass(frozen=True)
class Shape:
    """One golden checkpoint. prefix: prefix of its tensors' names; a nested prefix has a nested
    config too. mtp: True if it includes the tensors of a draft head, unused by tests. stretched:
    True if it has goldens of longer contexts too."""

    name: str
    seed: int
    prefix: str
    mtp: bool
    text: dict[str, Any]
    cases: tuple[Case, ...]
    stretched: bool = False

    @property
    def moe(self) -> bool:
        return "num_experts" in self.text


_COMMON = {
    "dtype": "bfloat16",
    "full_attention_interval": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 64,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_num_key_heads": 1,
    "linear_value_head_dim": 64,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [3, 3, 2],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000.0,
        "rope_type": "default",
    },
    "vocab_size": 320,
}

SHAPES = (
    Shape(
        name="small-dense",
        seed=20260101,
        prefix="model.",
        mtp=True,
        text=_COMMON
        | {
            "model_type": "qwen3_5_text",
            "intermediate_size": 160,
            "linear_num_value_heads": 2,
            "mtp_num_hidden_layers": 1,
            "mtp_use_dedicated_embeddings": False,
            "tie_word_embeddings": True,
        },
        cases=(
            Case("one", 1, 24),
            Case("three", 3, 24, states_at=(3,), hidden=True, end=True),
            Case("chunk", 64, 24),
            Case("chunk1", 65, 24, hidden=True),
            Case("long", 200, 32, states_at=(64, 200)),
            Case("turn2", 333, 32, states_at=(256,), extends="long"),
        ),
        stretched=True,
    ),
    Shape(
        name="small-moe",
        seed=20260102,
        prefix="model.language_model.",
        mtp=False,
        text=_COMMON
        | {
            "model_type": "qwen3_5_moe_text",
            "linear_num_value_heads": 3,
            "moe_intermediate_size": 32,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "shared_expert_intermediate_size": 48,
            "tie_word_embeddings": False,
        },
        cases=(
            Case("one", 1, 24),
            Case("five", 5, 24, states_at=(5,), hidden=True, end=True),
            Case("long", 200, 32, states_at=(200,)),
            Case("turn2", 290, 32, states_at=(256,), extends="long"),
        ),
    ),
)
