"""The embedded model's shape: the smallest that runs through the same kernels as published models.

Head sizes (128 for GDN, 256 for attention), rotary share and ratios are those of Qwen3.5; only
width, depth and vocabulary shrink.
"""

from typing import Any

from tools.training.checkpoint import text_config

MAX_TOKENS = 32768
VOCABULARY = 2048
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def model_config(end_of_text: int) -> Any:
    """About 7.9 M parameters, 16 MB in bfloat16."""
    return text_config(
        mrope_section=(11, 11, 10),
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        layer_types=[*["linear_attention"] * 3, "full_attention"] * 2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=256,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        max_position_embeddings=MAX_TOKENS,
        eos_token_id=end_of_text,
    )
