"""The layers of a Kimi Linear model, one after the other, over views of pages and slots.

Knows pages and slots only as ids in a `Batch`, and memory only as the views given to it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from tasuki.model.forward import LayerHooks
from tasuki.pycache.arena import Arena

from .config import CONV, LATENT, SSM, KimiConfig, Mixer
from .operators import KimiOperators
from .weights import KdaWeights, KimiLayer, KimiWeights


@dataclass(frozen=True)
class KdaStates:
    """States of a KDA layer by slot. conv [slots, channels q | k | v, columns], ssm [slots, heads,
    value dim, key dim]."""

    conv: Tensor
    ssm: Tensor


@dataclass(frozen=True)
class LatentPages:
    """Pages of a latent attention layer. rows: [page ids, page_tokens, rank + shared_dim]."""

    rows: Tensor


LayerViews = KdaStates | LatentPages


def views_of(arena: Arena, config: KimiConfig) -> list[LayerViews]:
    """Return the views of every layer's part of the arena."""
    return [
        KdaStates(arena.view(layer, CONV), arena.view(layer, SSM))
        if mixer is Mixer.KDA
        else LatentPages(arena.view(layer, LATENT))
        for layer, mixer in enumerate(config.mixers)
    ]


def run_layers(
    tokens: Tensor,
    weights: KimiWeights,
    operators: KimiOperators,
    views: Sequence[LayerViews],
    hooks: LayerHooks,
) -> tuple[Tensor, Tensor]:
    """Run token ids [T] through all layers. Return the last branch and the residual stream, [T,
    hidden], not yet added. views: of each layer."""
    residual = functional.embedding(tokens, weights.embedding)
    branch = None
    for layer, (own, view) in enumerate(zip(weights.layers, views, strict=True)):
        hooks.before_layer(layer)
        projected, residual = operators.norm_project(
            branch, residual, own.mixer_norm, own.mixer.in_proj
        )
        hooks.mixer_inputs(layer, projected)
        mixed = _mix(projected, own, operators, view)
        hooks.cache_written(layer)
        branch = operators.project(mixed, own.mixer.out_proj)
        branch, residual = operators.feed_forward(branch, residual, own.mlp_norm, own.mlp)
        hooks.after_layer(layer, _sum_of(branch, residual))
    assert branch is not None
    return branch, residual


def _sum_of(branch: Tensor, residual: Tensor) -> Callable[[], Tensor]:
    return lambda: branch + residual


def fold_states(
    inputs: Mapping[int, Tensor],
    weights: KimiWeights,
    operators: KimiOperators,
    views: Sequence[LayerViews],
) -> None:
    """Advance and store the states of KDA layers. inputs: by layer, the tensors that
    hooks.mixer_inputs() received for the bound batch's tokens."""
    for layer, (own, view) in enumerate(zip(weights.layers, views, strict=True)):
        if isinstance(view, KdaStates):
            _mix(inputs[layer], own, operators, view)


def _mix(
    projected: Tensor, weights: KimiLayer, operators: KimiOperators, view: LayerViews
) -> Tensor:
    """Run a layer's mixer on its projected inputs. Return the input of out_proj."""
    mixer = weights.mixer
    if isinstance(mixer, KdaWeights):
        assert isinstance(view, KdaStates), "a KDA layer has states"
        return operators.kda(projected, mixer, view.conv, view.ssm)
    assert isinstance(view, LatentPages), "a latent attention layer has pages"
    return operators.latent(projected, mixer, view.rows)
