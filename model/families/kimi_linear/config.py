"""The shape of a Kimi Linear model, read from the fields of its config.json.

Owns the meaning of the published fields, their defaults and their refusals. Layer numbers in the
published lists begin at 1. Does not know weights or memory. Immutable.

Heads and widths of a config may be those of one rank (cuts.py).
"""

from dataclasses import dataclass
from enum import Enum

from tasuki.model.config_json import ConfigFields

_ONLY: tuple[tuple[str, object], ...] = (
    ("hidden_act", "silu"),
    ("q_lora_rank", None),
    ("rope_scaling", None),
    ("moe_layer_freq", 1),
    ("moe_renormalize", True),
    ("moe_router_activation_func", "sigmoid"),
    ("num_expert_group", 1),
    ("topk_group", 1),
    ("num_nextn_predict_layers", 0),
)
"""The only supported value of each field. Without a check, another value would be ignored."""


class Mixer(Enum):
    """Kind of a layer's mixer. KDA: the delta rule with a decay per key channel, and a state.
    LATENT: attention over latent rows in pages. The values name the kind in the config and in a
    cache layout."""

    KDA = "kda"
    LATENT = "latent"


_LISTS = {"kda_layers": Mixer.KDA, "full_attn_layers": Mixer.LATENT}


@dataclass(frozen=True)
class LatentShape:
    """Shape of latent attention. heads: number of query heads. rank: width of the latent. key_dim,
    value_dim: width of a head's key and value made from the latent. shared_dim: width of the key
    common to all heads."""

    heads: int
    rank: int
    key_dim: int
    shared_dim: int
    value_dim: int

    @property
    def query_dim(self) -> int:
        """Return the width of one head's query: [key_dim | shared_dim]."""
        return self.key_dim + self.shared_dim

    @property
    def row(self) -> int:
        """Return the width of a token's cached row: [latent | shared key]."""
        return self.rank + self.shared_dim


@dataclass(frozen=True)
class ExpertShape:
    """Shape of a mixture of experts. experts: their number, `chosen` of them for each token.
    intermediate, shared: inner widths of one expert and of the shared one. scale: factor of the
    routed sum. held: range of experts stored on this rank; None: all."""

    experts: int
    chosen: int
    intermediate: int
    shared: int
    scale: float
    held: range | None = None

    @property
    def own(self) -> range:
        """Return the range of experts stored on this rank."""
        return range(self.experts) if self.held is None else self.held


@dataclass(frozen=True)
class KimiShape:
    """Shape of the layers. mixers: kind of each layer. kda_heads, kda_dim: heads of a KDA layer,
    and their width. gate_rank: inner width of the two-step products for decay and gate. conv_width:
    taps of the convolution. dense_layers: number of first layers with a dense feed-forward of inner
    width `intermediate`."""

    mixers: tuple[Mixer, ...]
    kda_heads: int
    kda_dim: int
    gate_rank: int
    conv_width: int
    latent: LatentShape
    experts: ExpertShape
    dense_layers: int
    intermediate: int

    @property
    def kda_width(self) -> int:
        """Return the number of channels of a KDA layer's queries; keys and values have as many."""
        return self.kda_heads * self.kda_dim

    @property
    def conv_channels(self) -> int:
        """Return the number of channels in the convolution of [q | k | v]."""
        return 3 * self.kda_width


def read_shape(fields: ConfigFields) -> KimiShape:
    """Return the shape of the layers. fields: of the config.json. Raises ModelConfigError naming
    the field at fault."""
    for name, only in _ONLY:
        fields.require(name, only)
    if fields.get("mla_use_nope") is not True:
        raise fields.error(
            "mla_use_nope",
            f"is {fields.get('mla_use_nope')!r:.40}",
            "only true is supported: latent attention without rotary positions",
        )
    linear = fields.object("linear_attn_config")
    if linear is None:
        raise fields.error("linear_attn_config", "is missing", "copy it from the published config")
    dim = linear.size("head_dim")
    conv_width = linear.size("short_conv_kernel_size", 4)
    if conv_width < 2:
        raise linear.error("short_conv_kernel_size", "is below 2", "published models have 4")
    layers = fields.size("num_hidden_layers")
    return KimiShape(
        mixers=_mixers(linear, layers),
        kda_heads=linear.size("num_heads"),
        kda_dim=dim,
        gate_rank=dim,
        conv_width=conv_width,
        latent=LatentShape(
            heads=fields.size("num_attention_heads"),
            rank=fields.size("kv_lora_rank"),
            key_dim=fields.size("qk_nope_head_dim"),
            shared_dim=fields.size("qk_rope_head_dim"),
            value_dim=fields.size("v_head_dim"),
        ),
        experts=_experts(fields),
        dense_layers=_dense_layers(fields, layers),
        intermediate=fields.size("intermediate_size"),
    )


def _mixers(linear: ConfigFields, layers: int) -> tuple[Mixer, ...]:
    """Return the kind of each layer, from two lists of layer numbers that begin at 1."""
    found: dict[int, Mixer] = {}
    for name, kind in _LISTS.items():
        numbers = linear.get(name)
        if not isinstance(numbers, list) or not all(type(item) is int for item in numbers):
            raise linear.error(name, f"is {numbers!r:.40}", "list the numbers of layers, from 1 on")
        for number in numbers:
            if number in found or not 1 <= number <= layers:
                raise linear.error(
                    name,
                    f"names layer {number}",
                    f"name each layer from 1 to num_hidden_layers {layers} once in both lists",
                )
            found[number] = kind
        if not numbers:
            raise linear.error(
                name,
                "is empty, so the model is no hybrid",
                "serve it with an engine for models of one layer kind",
            )
    missing = [layer for layer in range(1, layers + 1) if layer not in found]
    if missing:
        raise linear.error(
            "kda_layers", f"and full_attn_layers miss layer {missing[0]}", "add it to one of them"
        )
    return tuple(found[layer] for layer in range(1, layers + 1))


def _experts(fields: ConfigFields) -> ExpertShape:
    experts, chosen = fields.size("num_experts"), fields.size("num_experts_per_token")
    if chosen > experts:
        raise fields.error("num_experts_per_token", "exceeds num_experts", "lower it")
    intermediate = fields.size("moe_intermediate_size")
    return ExpertShape(
        experts=experts,
        chosen=chosen,
        intermediate=intermediate,
        shared=intermediate * fields.size("num_shared_experts"),
        scale=fields.number("routed_scaling_factor", 1.0),
    )


def _dense_layers(fields: ConfigFields, layers: int) -> int:
    count = fields.get("first_k_dense_replace", 0)
    if type(count) is not int or not 0 <= count < layers:
        raise fields.error(
            "first_k_dense_replace",
            f"is {count!r:.40}",
            f"use a number from 0 to {layers - 1}: fewer than num_hidden_layers",
        )
    return count
