"""Initial weights of the tool caller's training: they already copy the token after an earlier
occurrence of the same three tokens.

A model of this size finds copying by itself only after millions of tokens, so it is given here. The
first layer writes the tokens at a place and at the three places before it. The attention layer
looks for places preceded by the present place's last tokens, and reads the token there. The second
layer forgets slowly, so it can learn its position in an answer: the end of a text ends an argument
in a call, and elsewhere the answer. Training learns the content and source of copies, and the text
between them.
"""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from .shape import PLACES, PRINT_SIZE, WORD_SIZE

_BIAS = WORD_SIZE - 1
"""Index of the embedding dimension with the same value for every token."""
_SLOW_TURNS = (5, 6, 7)
"""Rotary pairs of an attention head with periods of 5,200, 20,000 and 76,000 tokens."""


@torch.no_grad()
def start(model: nn.Module) -> None:
    """Overwrite the weights of a newly made Qwen3_5ForCausalLM of `shape.model_config` with the
    initial weights."""
    embedding = model.model.embed_tokens.weight
    embedding.zero_()
    words = torch.randn(len(embedding), WORD_SIZE - 1)
    embedding[:, : WORD_SIZE - 1] = words / words.norm(dim=-1, keepdim=True)
    embedding[:, _BIAS] = 0.3
    model.lm_head.weight = model.model.embed_tokens.weight
    first, second, last = model.model.layers
    _write_prints(first.linear_attn)
    _remember(second.linear_attn)
    _look_up(last.self_attn)


@torch.no_grad()
def prefer_near(model: nn.Module, strength: float) -> None:
    """Make the attention layer prefer near places to far ones. The preference learnt by third
    stages has a period of 1,350 tokens, so it also prefers places a whole period away."""
    layer = model.model.layers[-1].self_attn
    for row in _SLOW_TURNS:
        layer.k_proj.weight[row, _BIAS] += strength
        layer.q_proj.weight.view(-1, 2 * layer.head_dim, WORD_SIZE + PLACES * PRINT_SIZE)[
            :, row, _BIAS
        ] += strength


@torch.no_grad()
def sharpen(model: nn.Module, factor: float) -> None:
    """Multiply the attention layer's scores by `factor`, so it attends to fewer places."""
    weight = model.model.layers[-1].self_attn.q_norm.weight
    # The layer multiplies by the weight plus one.
    weight.copy_((1 + weight) * factor - 1)


def _write_prints(layer: nn.Module) -> None:
    hidden = layer.in_proj_z.weight.shape[1]
    word_print = torch.randn(PRINT_SIZE, WORD_SIZE - 1) * 0.02
    keys = 2 * PRINT_SIZE
    layer.in_proj_qkv.weight[:keys, : WORD_SIZE - 1] = torch.randn(
        PRINT_SIZE, WORD_SIZE - 1
    ).repeat(2, 1)
    layer.conv1d.weight.zero_()
    layer.conv1d.weight[:keys, 0, PLACES - 1] = 1.0
    for place in range(PLACES):
        rows = slice(keys + place * PRINT_SIZE, keys + (place + 1) * PRINT_SIZE)
        layer.in_proj_qkv.weight[rows] = 0.0
        layer.in_proj_qkv.weight[rows, : WORD_SIZE - 1] = word_print
        layer.conv1d.weight[rows, 0, PLACES - 1 - place] = 1.0
    # Nothing is kept from token to token, and written values are read at once.
    layer.A_log.fill_(1.5)
    layer.dt_bias.fill_(5.0)
    _only_bias(layer.in_proj_b.weight, 1.0)
    _only_bias(layer.in_proj_z.weight, 0.5)
    layer.out_proj.weight.zero_()
    layer.out_proj.weight[WORD_SIZE:hidden] = torch.eye(PLACES * PRINT_SIZE) * 0.1


def _remember(layer: nn.Module) -> None:
    """Give each GDN head another memory length in tokens, and let a token write little to the
    state."""
    tokens = torch.tensor([3000.0, 300.0, 100.0, 30.0])
    layer.dt_bias.fill_(1.0)
    layer.A_log.copy_(-torch.log(tokens * functional.softplus(layer.dt_bias)))
    _only_bias(layer.in_proj_b.weight, -1.0)


def _look_up(layer: nn.Module) -> None:
    size = layer.head_dim
    prints = [WORD_SIZE + place * PRINT_SIZE for place in range(PLACES)]
    # The first quarter of a head rotates with the position.
    room = size - (PLACES - 1) * PRINT_SIZE
    for head in range(len(layer.q_proj.weight) // (2 * size)):
        query, gate = layer.q_proj.weight[2 * head * size :][: 2 * size].split(size)
        _only_bias(gate, 0.5)
        query[room:] = 0.0
        for back, weight in enumerate((1.0, 0.5 + 0.3 * head, 0.3 + 0.3 * head)):
            _read(query, room + back * PRINT_SIZE, prints[back], weight)
    layer.k_proj.weight[room:] = 0.0
    for back in range(PLACES - 1):
        _read(layer.k_proj.weight, room + back * PRINT_SIZE, prints[back + 1], 1.0)
    layer.q_norm.weight.fill_(0.4)
    layer.k_norm.weight.fill_(0.4)
    layer.v_proj.weight.zero_()
    layer.v_proj.weight[: WORD_SIZE - 1, : WORD_SIZE - 1] = torch.eye(WORD_SIZE - 1)
    layer.o_proj.weight.zero_()
    for head in range(layer.o_proj.weight.shape[1] // size):
        columns = slice(head * size, head * size + WORD_SIZE - 1)
        layer.o_proj.weight[: WORD_SIZE - 1, columns] = torch.eye(WORD_SIZE - 1) * 0.5


def _read(weight: Tensor, row: int, column: int, scale: float) -> None:
    """Set a block of a weight to pass on one token's identity (PRINT_SIZE dimensions) from `column`
    to `row`, times `scale`."""
    weight[row : row + PRINT_SIZE, column : column + PRINT_SIZE] = torch.eye(PRINT_SIZE) * scale


def _only_bias(weight: Tensor, value: float) -> None:
    weight *= 0.1
    weight[:, _BIAS] = value
