"""Makes the random weights of a checkpoint with numpy's generator, because it gives the same values
on every processor.

Invariant: a tensor depends only on the shape's seed, its own name and its own size.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tools.goldens.shapes import Shape
from tools.training.checkpoint import FLOAT32


def random_tensor(seed: int, name: str, size: tuple[int, ...]) -> Tensor:
    """Return a random tensor, scaled so a network of these shapes neither fades nor saturates."""
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    drawn = np.random.default_rng(list(key)).standard_normal(size)
    match name.rsplit(".", 2)[-2:]:
        case [_, "A_log"]:
            values = 0.4 + 0.7 * drawn
        case [_, "dt_bias"]:
            values = -1.5 + drawn
        case ["embed_tokens", _]:
            values = 0.7 * drawn
        case ["conv1d", _]:
            values = 0.4 * drawn
        case ["norm", _] if ".linear_attn." in name:
            values = 1 + 0.2 * drawn
        case _ if len(size) == 1:
            values = 0.2 * drawn
        case _:
            values = (2.0 if name == "lm_head.weight" else 1.1) / size[-1] ** 0.5 * drawn
    dtype = torch.float32 if name.endswith(FLOAT32) else torch.bfloat16
    return torch.from_numpy(values.astype(np.float32)).to(dtype)


def random_weights(shape: Shape, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return the weights by name. sizes: sizes of the model's tensors, by transformers' names."""
    return {name: random_tensor(shape.seed, name, size) for name, size in sizes.items()}


def draft_head(shape: Shape) -> dict[str, Tensor]:
    """Return the tensors of a draft head: a dense layer and its input projection, named like in
    checkpoints with MTP."""
    text = shape.text
    hidden, wide, head = text["hidden_size"], text["intermediate_size"], text["head_dim"]
    queries, keys = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
    sizes: dict[str, tuple[int, ...]] = {
        "fc": (hidden, 2 * hidden),
        "norm": (hidden,),
        "pre_fc_norm_embedding": (hidden,),
        "pre_fc_norm_hidden": (hidden,),
        "layers.0.input_layernorm": (hidden,),
        "layers.0.post_attention_layernorm": (hidden,),
        "layers.0.self_attn.q_proj": (2 * queries, hidden),
        "layers.0.self_attn.k_proj": (keys, hidden),
        "layers.0.self_attn.v_proj": (keys, hidden),
        "layers.0.self_attn.o_proj": (hidden, queries),
        "layers.0.self_attn.q_norm": (head,),
        "layers.0.self_attn.k_norm": (head,),
        "layers.0.mlp.gate_proj": (wide, hidden),
        "layers.0.mlp.up_proj": (wide, hidden),
        "layers.0.mlp.down_proj": (hidden, wide),
    }
    return random_weights(shape, {f"mtp.{name}.weight": size for name, size in sizes.items()})
