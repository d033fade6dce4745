"""What a config.json has to do with positions: rotary parameters, YaRN, the longest context.

Follows transformers: `rope_scaling`, where it is given, stands for all of `rope_parameters`, and
`type` is the old name of `rope_type`. What is not computed here is refused, and so is a scaling
without rope_theta, for which transformers would take a base that no model of the family has.
mrope's sections change nothing: the positions of text are equal in all of them. Immutable.
"""

import math
from dataclasses import dataclass

from tasuki.pycache.layout import MODEL_KINDS

from .config_json import ConfigFields

_THETA = 1e7
_PARTIAL = 0.25
_BETA_FAST = 32.0
_BETA_SLOW = 1.0


@dataclass(frozen=True)
class Yarn:
    """Angles for contexts `factor` times as long as the `original` positions of the training.

    A pair of elements that turns more than beta_fast times in `original` positions keeps its
    frequency, one that turns less than beta_slow times has it divided by the factor, those between
    get a mixture; truncate: it begins and ends at whole pairs. attention_factor: of cos and sin, so
    that scores grow with its square.
    """

    factor: float
    original: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    truncate: bool


@dataclass(frozen=True)
class RopeSettings:
    """theta: base of the frequencies. partial: the part of a head that turns. yarn: None where
    angles are as trained. positions: tokens of the longest context."""

    theta: float
    partial: float
    yarn: Yarn | None
    positions: int

    @staticmethod
    def of(text: ConfigFields, outer: ConfigFields) -> "RopeSettings":
        """text: the text model's config; outer: the object that holds it, or itself. Raises
        ModelConfigError."""
        _refuse_misplaced(text, outer)
        scaling = text.object("rope_scaling")
        rope = scaling or text.object("rope_parameters") or ConfigFields({}, text.source)
        named = "rope_type" if "rope_type" in rope else "type"
        kind = rope.get(named, "default")
        if kind not in ("default", "yarn"):
            raise rope.error(named, f"is {kind!r}", "only 'default' and 'yarn' are supported")
        for layer in MODEL_KINDS:
            if layer.value in rope:
                raise rope.error(layer.value, "is for one kind of layer", "give one for all layers")
        yarn = _yarn(rope, text) if kind == "yarn" else None
        certain = scaling is None and yarn is None
        return RopeSettings(
            theta=_either(rope, text, "rope_theta").number(
                "rope_theta", _THETA if certain else None
            ),
            partial=_either(rope, text, "partial_rotary_factor").number(
                "partial_rotary_factor", _PARTIAL
            ),
            yarn=yarn,
            positions=_positions(rope, text, yarn),
        )


def _refuse_misplaced(text: ConfigFields, outer: ConfigFields) -> None:
    if outer.values is text.values:
        return
    for name in ("rope_scaling", "rope_parameters"):
        if outer.get(name) and outer.get(name) != text.get(name):
            raise outer.error(name, "is beside text_config and not in it", "move it there")


def _either(rope: ConfigFields, text: ConfigFields, name: str) -> ConfigFields:
    """Where the field is read: older configs have it beside the rotary parameters."""
    return text if name in text and name not in rope else rope


def _yarn(rope: ConfigFields, text: ConfigFields) -> Yarn:
    original = _original(rope, text).size("original_max_position_embeddings", _published(text))
    # null, unlike no factor, asks for the ratio of the two lengths.
    ratio = _published(text) / original
    factor = ratio if rope.get("factor", 0) is None else rope.number("factor")
    if factor < 1:
        raise rope.error("factor", f"is {factor:g}", "use 1 or more")
    beta_fast = _given(rope, "beta_fast") or _BETA_FAST
    beta_slow = _given(rope, "beta_slow") or _BETA_SLOW
    if beta_fast < beta_slow:
        raise rope.error(
            "beta_fast", f"is {beta_fast:g}, below beta_slow {beta_slow:g}", "exchange the two"
        )
    truncate = rope.get("truncate", True)
    if not isinstance(truncate, bool):
        raise rope.error("truncate", f"is {truncate!r}", "use true or false")
    return Yarn(factor, original, beta_fast, beta_slow, _attention_factor(rope, factor), truncate)


def _attention_factor(rope: ConfigFields, factor: float) -> float:
    if rope.get("attention_factor") is not None:
        return rope.number("attention_factor")
    mscale, all_dim = _given(rope, "mscale"), _given(rope, "mscale_all_dim")
    if mscale is not None and all_dim is not None:
        return _mscale(factor, mscale) / _mscale(factor, all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _given(rope: ConfigFields, name: str) -> float | None:
    """None where it is absent, null or 0, which transformers takes for absent too."""
    return rope.number(name) if rope.get(name) else None


def _original(rope: ConfigFields, text: ConfigFields) -> ConfigFields:
    """Where the trained length is read: a field beside the rotary parameters has the last word."""
    return text if "original_max_position_embeddings" in text else rope


def _published(text: ConfigFields) -> int:
    return text.size("max_position_embeddings", 262144)


def _positions(rope: ConfigFields, text: ConfigFields, yarn: Yarn | None) -> int:
    published = _published(text)
    stated = "original_max_position_embeddings" in _original(rope, text)
    if yarn is None or not stated or published > yarn.original:
        return published
    # Only the rotary parameters were edited, as the models' cards advise.
    return int(yarn.original * yarn.factor)
