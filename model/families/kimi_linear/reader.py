"""The meaning of a Kimi Linear config.json: its fields, their defaults and their refusals.

Layer numbers in the published lists begin at 1.
"""

from tasuki.model.config_json import MOST_LISTED, ConfigFields, ConfigFile

from .config import ExpertShape, KimiConfig, LatentShape, Mixer

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

_LISTS = {"kda_layers": Mixer.KDA, "full_attn_layers": Mixer.LATENT}


def read_config(file: ConfigFile) -> KimiConfig:
    """Return the shape of a model. Raises ModelConfigError naming the field at fault."""
    fields = file.text
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
    layers = fields.size("num_hidden_layers", most=MOST_LISTED)
    return KimiConfig(
        model_type=str(file.outer.get("model_type")),
        vocab=fields.size("vocab_size"),
        hidden=fields.size("hidden_size"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        tied=file.is_tied(),
        max_position=_positions(fields),
        eos_ids=file.eos_ids(),
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


def _positions(fields: ConfigFields) -> int:
    """Return the tokens of the longest context, under either of two published names."""
    named = "model_max_length" if "model_max_length" in fields else "max_position_embeddings"
    return fields.size(named)


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
    experts, chosen = (
        fields.size("num_experts", most=MOST_LISTED),
        fields.size("num_experts_per_token"),
    )
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
