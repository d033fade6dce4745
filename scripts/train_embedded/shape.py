"""The embedded model's shape: the smallest that runs through the same kernels as published models.

Head sizes (128 for GDN, 256 for attention), rotary share and ratios are those of Qwen3.5; only
width, depth and vocabulary shrink.
"""

from transformers import GenerationConfig, Qwen3_5TextConfig

from .tokenizer import VOCABULARY

MAX_TOKENS = 32768


def model_config(end_of_text: int) -> Qwen3_5TextConfig:
    """About 7.9 M parameters, 16 MB in bfloat16."""
    interval, layers = 4, 8
    return Qwen3_5TextConfig(
        architectures=["Qwen3_5ForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=layers,
        layer_types=[
            "linear_attention" if (layer + 1) % interval else "full_attention"
            for layer in range(layers)
        ],
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=256,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        max_position_embeddings=MAX_TOKENS,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
        },
        eos_token_id=end_of_text,
    )


def generation_config(end_of_text: int, turn_end: int) -> GenerationConfig:
    """Generation stops at the end of a turn and at the end of a text."""
    return GenerationConfig(
        eos_token_id=[turn_end, end_of_text],
        pad_token_id=end_of_text,
        do_sample=True,
        temperature=0.8,
        top_p=0.95,
    )
