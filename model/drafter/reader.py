"""The reader of a block drafter's config.json, and its refusals.

The layout is DFlash: `architectures` lists DFlashDraftModel, and `dflash_config` names the mask
token and the target's layers. The drafter has Qwen3's transformer, so its norms multiply by the
stored weight itself. Embedding and head are the target's.

Source: github.com/z-lab/dflash, dflash/model.py at 10129599. `target_layer_ids` count the target's
layers from 0 and mean their outputs. A field of the computation is refused with any value but the
one computed here: layers with a window, DFlash2, scaled embeddings or logits. Each error names the
file, the field and the fix.
"""

from dataclasses import replace
from pathlib import Path

from tasuki.model.config import ModelConfig
from tasuki.model.config_json import MOST_LISTED, ConfigFields, read_json
from tasuki.model.drafter_shape import FLAG, DrafterShape

ARCHITECTURE = "DFlashDraftModel"
_ONLY: tuple[tuple[str, object], ...] = (
    ("model_type", "qwen3"),
    ("hidden_act", "silu"),
    ("attention_bias", False),
    ("use_sliding_window", False),
    ("rope_scaling", None),
)
"""Fields of the config, each with its one value computed here."""
_ONLY_IN_EITHER: tuple[tuple[str, object], ...] = (
    ("input_embedding_scale", 1.0),
    ("output_multiplier", 1.0),
    ("final_logit_softcapping", None),
)
"""The same for fields of the config or of its `dflash_config`."""
_FULL = "full_attention"
_BLOCK = 16
"""Tokens of a block of a config without `block_size`."""
_FEWEST = 2
"""Fewest tokens of a block: one known token, and one to propose."""


def with_drafter(model: ModelConfig, folder: str | None) -> ModelConfig:
    """Return the model's config as served with the block drafter in this folder; unchanged for
    None. Raises ModelConfigError."""
    return model if folder is None else replace(model, drafter=read_drafter(Path(folder), model))


def read_drafter(folder: Path, model: ModelConfig) -> DrafterShape:
    """Return the shape of the block drafter in a folder. model: the target. Raises ModelConfigError
    for another layout, or a drafter of another target."""
    path = folder / "config.json"
    fields = ConfigFields(read_json(path), str(path))
    _check_layout(fields)
    _check_target(fields, model)
    rope = fields.object("rope_parameters") or fields
    if rope is not fields:
        rope.require("rope_type", "default")
    own = fields.object("dflash_config")
    if own is None:
        raise fields.error("dflash_config", "is missing", "copy it from the published config")
    heads, kv_heads = fields.size("num_attention_heads"), fields.size("num_key_value_heads")
    if heads % kv_heads:
        raise fields.error(
            "num_attention_heads", "is no multiple of num_key_value_heads", "correct either"
        )
    head_dim = fields.size("head_dim", 128)
    if head_dim % 2:
        raise fields.error("head_dim", f"is {head_dim}", "use an even number")
    for name, only in _ONLY_IN_EITHER:
        fields.require(name, only)
        own.require(name, only)
    sized = fields if own.get("block_size") is None else own
    block = sized.size("block_size", _BLOCK, most=MOST_LISTED)
    if block < _FEWEST:
        raise sized.error("block_size", f"is {block}", f"use {_FEWEST} or more")
    mask = own.get("mask_token_id")
    if type(mask) is not int or not 0 <= mask < model.vocab:
        raise own.error(
            "mask_token_id", f"is {mask!r:.40}", f"use a token id from 0 to {model.vocab - 1}"
        )
    return DrafterShape(
        layers=fields.size("num_hidden_layers", most=MOST_LISTED),
        hidden=model.hidden,
        intermediate=fields.size("intermediate_size"),
        query_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=rope.number("rope_theta"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        block=block,
        mask_id=mask,
        target_layers=_target_layers(own, model),
    )


def _check_layout(fields: ConfigFields) -> None:
    """Raise ModelConfigError unless the config has the layout of this reader."""
    if fields.get("architectures") != [ARCHITECTURE]:
        raise fields.error(
            "architectures",
            f"is {fields.get('architectures')!r:.80}",
            f"{FLAG} takes the folder of a drafter of {ARCHITECTURE}",
        )
    for name, only in _ONLY:
        fields.require(name, only)
    if fields.flag("is_causal", False):
        raise fields.error("is_causal", "is True", "only False is supported")
    kinds = fields.get("layer_types")
    if kinds is not None and kinds != [_FULL] * fields.size("num_hidden_layers", most=MOST_LISTED):
        raise fields.error("layer_types", f"is {kinds!r:.80}", f"only {_FULL} is supported")


def _check_target(fields: ConfigFields, model: ModelConfig) -> None:
    """Raise ModelConfigError unless the drafter was made for a target of this shape."""
    for name, value, of_model in (
        ("hidden_size", model.stream_width, "its residual stream is that wide"),
        ("vocab_size", model.vocab, "its embedding and head are shared"),
        ("num_target_layers", model.layers, "streams of its layers are read"),
    ):
        found = fields.size(name)
        if found != value:
            raise fields.error(
                name,
                f"is {found}, and --model has {value}: {of_model}",
                "give the drafter published for this model",
            )


def _target_layers(own: ConfigFields, model: ModelConfig) -> tuple[int, ...]:
    """Return the target's layers read by the drafter, ascending. Raises ModelConfigError."""
    listed = own.get("target_layer_ids")
    ids = listed if isinstance(listed, list) else []
    # The final norm follows the last layer, and no drafter reads its stream before that.
    whole = all(type(layer) is int and 0 <= layer < model.layers for layer in ids)
    if not ids or not whole or ids != sorted(set(ids)):
        raise own.error(
            "target_layer_ids",
            f"is {listed!r:.80}",
            f"list layers of --model, ascending, from 0 to {model.layers - 1}",
        )
    return tuple(ids)
