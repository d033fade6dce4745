"""Times the library transformers (with fla's kernels, if installed) on the same shapes in the same
run.

Uses its own random weights, because speed does not depend on them. Dense models only.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from tasuki.bench.errors import BenchError
from tasuki.model.config import DeltaNetConfig, DenseShape, ModelConfig

from .timing import median_seconds

_STEPS = 16


def decode_seconds(config: ModelConfig, device: torch.device, context: int) -> float:
    """Return transformers' seconds of a decode step of one request with `context` tokens."""
    with _model(config, device) as model:
        cache = _prefill(model, config, device, context).past_key_values
        token = torch.zeros(1, 1, dtype=torch.int64, device=device)

        def step() -> None:
            model(input_ids=token, past_key_values=cache, use_cache=True)

        return median_seconds(step, device, repeats=_STEPS)


def prefill_seconds(config: ModelConfig, device: torch.device, tokens: int) -> float:
    """Return transformers' seconds of a prompt's forward, up to the logits of its last token."""
    with _model(config, device) as model:
        return median_seconds(
            lambda: _prefill(model, config, device, tokens), device, repeats=3, warmups=1
        )


def _prefill(model: Any, config: ModelConfig, device: torch.device, tokens: int) -> Any:
    ids = torch.randint(0, config.vocab, (1, tokens), device=device)
    return model(input_ids=ids, use_cache=True, logits_to_keep=1)


@contextmanager
def _model(config: ModelConfig, device: torch.device) -> Iterator[Any]:
    """Yield a transformers model. Its memory is freed at the block's end, because the engine under
    test needs all of it. Raises BenchError."""
    if find_spec("transformers") is None:
        raise BenchError("transformers is not installed: leave --peer out, or install it")
    if not isinstance(config, DeltaNetConfig) or not isinstance(config.feed_forward, DenseShape):
        raise BenchError("the comparison with transformers is for dense models only")
    from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

    shape = Qwen3_5TextConfig(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        intermediate_size=config.feed_forward.intermediate,
        num_hidden_layers=config.layers,
        num_attention_heads=config.query_heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=config.max_position,
        rms_norm_eps=config.norm_eps,
        tie_word_embeddings=config.tied,
        head_dim=config.head_dim,
        linear_conv_kernel_dim=config.conv_width,
        linear_key_head_dim=config.key_dim,
        linear_value_head_dim=config.value_dim,
        linear_num_key_heads=config.key_heads,
        linear_num_value_heads=config.value_heads,
        layer_types=[kind.value for kind in config.layer_kinds],
        rope_parameters={
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.rotary_dim / config.head_dim,
        },
    )
    with torch.inference_mode():
        with device:
            model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).eval()
        yield model
        del model
    gc.collect()
    torch.cuda.empty_cache()
