"""The tool caller's shape: a Qwen3.5 that is as small as learns to copy."""

from transformers import GenerationConfig, Qwen3_5TextConfig

MAX_TOKENS = 131072
WORD_SIZE = 96
"""Of a hidden state, the part that a token's embedding fills at first."""
PRINT_SIZE = 24
"""Of it, each part that says which token stood at one of the places."""
PLACES = 4
"""A place and the three before it: as many as the convolution sees."""
MAX_ANSWER = 512
"""Tokens of an answer where a client sets no bound of its own."""


def model_config(vocabulary: int, end_of_text: int) -> Qwen3_5TextConfig:
    return Qwen3_5TextConfig(
        architectures=["Qwen3_5ForCausalLM"],
        vocab_size=vocabulary,
        hidden_size=WORD_SIZE + PLACES * PRINT_SIZE,
        intermediate_size=192,
        num_hidden_layers=3,
        layer_types=["linear_attention", "linear_attention", "full_attention"],
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=WORD_SIZE,
        linear_num_key_heads=1,
        linear_num_value_heads=PLACES,
        linear_key_head_dim=PRINT_SIZE,
        linear_value_head_dim=PRINT_SIZE,
        linear_conv_kernel_dim=PLACES,
        max_position_embeddings=MAX_TOKENS,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [4, 4, 4],
        },
        eos_token_id=end_of_text,
    )


def generation_config(end_of_text: int, turn_end: int) -> GenerationConfig:
    """Generation stops at the end of a turn and of a text; the likeliest token is taken."""
    return GenerationConfig(
        eos_token_id=[turn_end, end_of_text],
        pad_token_id=end_of_text,
        max_new_tokens=MAX_ANSWER,
        do_sample=True,
        top_k=1,
    )
