"""Cases of a mixture of experts with weights in coded formats: a few decode tokens, and a chunk of
a prompt."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from tasuki.model.config import DeltaNetConfig, MoeShape
from tasuki.model.forward import Activations
from tasuki.model.quantise.checkpoint import RECIPES
from tasuki.model.quantise.source import QuantisedSource
from tasuki.model.weights.kernel_layout import for_kernels
from tasuki.model.weights.layers import MlpWeights, MoeWeights
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.source import RandomSource

from .case import Case, Stage, delta_net
from .experts import block_case

_TURNS = 16
_FORMATS = ("fp8", "nvfp4")


def cases(stage: Stage) -> Iterator[Case]:
    config = delta_net("35b-a3b")
    for form in _FORMATS:
        weights = _weights(stage, config, form)
        for tokens in (1, 4, 16, 32, 64, 128):
            yield _block(stage, config, weights, form, tokens, Activations.MODEL)
        yield _block(stage, config, weights, form, 8192, Activations.LIBRARY)
        del weights
        torch.cuda.empty_cache()


def _block(
    stage: Stage,
    config: DeltaNetConfig,
    weights: MoeWeights,
    form: str,
    tokens: int,
    activations: Activations,
) -> Case:
    turns = _TURNS if activations is Activations.MODEL else 2
    case = block_case(stage, config, weights, tokens, activations=activations, turns=turns)
    return replace(case, name=f"{form} {case.name}, activations as {activations.value}")


def _weights(stage: Stage, config: DeltaNetConfig, form: str) -> MoeWeights:
    shape, hidden = config.feed_forward, config.hidden
    assert isinstance(shape, MoeShape)
    source = QuantisedSource(RandomSource(1, stage.device), RECIPES[form])

    def matrix(name: str, *size: int) -> Matrix:
        found = source.matrix(f"layers.0.mlp.{name}", size, torch.bfloat16)
        return Matrix(for_kernels(found.segments))

    inner, wide = shape.intermediate, shape.shared_intermediate
    return MoeWeights(
        router=source.read("layers.0.mlp.gate.weight", (shape.experts, hidden), torch.bfloat16),
        gate_up=matrix("experts.gate_up_proj", shape.experts, 2 * inner, hidden),
        down=matrix("experts.down_proj", shape.experts, hidden, inner),
        shared=MlpWeights(
            matrix("shared_expert.gate_proj.weight", 2 * wide, hidden),
            matrix("shared_expert.down_proj.weight", hidden, wide),
        ),
        shared_gate=source.read("layers.0.mlp.shared_gate", (1, hidden), torch.bfloat16),
    )
