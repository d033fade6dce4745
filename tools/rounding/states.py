"""The cost of recurrent states in bfloat16, token by token as in answers, or as in prompts.

The text is read in forwards of FORWARD tokens. In answers, a state is rounded after each token; in
prompts, at every multiple of 64 tokens. Two roundings are compared with states in float32: to the
nearest number, and with the noise of production.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from tasuki.model.backends.torch_backend import TorchBackend, TorchOperators, TorchPlan, mix_states
from tasuki.model.config import DeltaNetConfig
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.families.registry import load_config
from tasuki.model.forward import Batch, one_rank
from tasuki.model.ops.attention.rope import RotaryAngles
from tasuki.model.ops.gdn.reference_rounding import StateNoise, StateRounding
from tasuki.model.ops.norm.reference import gated_rms_norm
from tasuki.model.ops.row_room import RowRoom
from tasuki.model.weights.layers import GdnWeights
from tests.harness.goldens import Request, Workspace, final_hidden, logits_of
from tests.harness.qwen35 import load_weights

FORWARD = 2048
"""Tokens of a forward, a multiple of 64."""


class Nearest(StateRounding):
    """Rounding to the nearest number of bfloat16."""

    def rounded(self, states: Tensor, counts: Tensor) -> Tensor:
        return states.to(torch.bfloat16)


@dataclass(frozen=True)
class StateForm:
    """Form of recurrent states. dtype: their dtype. rounding: in place of the layers' noise; None:
    the noise. stepped: indices of the sequences with an answer's tokens, as in Batch."""

    dtype: str
    rounding: StateRounding | None
    stepped: frozenset[int]


class FormedOperators(TorchOperators):
    """PyTorch's operators with states of another rounding."""

    def __init__(self, config: DeltaNetConfig, plan: TorchPlan, form: StateForm) -> None:
        super().__init__(config, plan, one_rank)
        self._form = form

    def gdn(self, projected: Tensor, weights: GdnWeights, conv: Tensor, ssm: Tensor) -> Tensor:
        config, plan = self._config, self._plan
        noise = self._form.rounding or StateNoise(weights.number)
        states = projected, weights, conv, ssm, config, plan.conv, plan.gdn
        output, gate = mix_states(*states, noise)
        return gated_rms_norm(output, gate, weights.norm, config.norm_eps).flatten(1)


class FormedBackend(TorchBackend):
    """PyTorch's back end with states of another rounding."""

    def __init__(self, config: DeltaNetConfig, form: StateForm) -> None:
        super().__init__(config)
        self._form = form
        self._rows, self._turns = RowRoom(), RotaryAngles.of(config)

    def bind(self, batch: Batch) -> TorchOperators:
        plan = TorchPlan.of(batch, self._config, self._turns, self._rows)
        gdn = replace(plan.gdn, stepped=self._form.stepped)
        return FormedOperators(self._config, replace(plan, gdn=gdn), self._form)


ANSWERS, PROMPTS = frozenset({0}), frozenset[int]()
FORMS = {
    "answers, nearest": StateForm("bfloat16", Nearest(), ANSWERS),
    "answers, noise": StateForm("bfloat16", None, ANSWERS),
    "prompts, nearest": StateForm("bfloat16", Nearest(), PROMPTS),
    "prompts, noise": StateForm("bfloat16", None, PROMPTS),
    "answers, float32": StateForm("float32", None, ANSWERS),
}
"""Forms to compare with prompts in float32. The last one has another order of sums alone."""
EXACT = StateForm("float32", None, PROMPTS)


@torch.inference_mode()
def forwards(folder: Path, form: StateForm, tokens: list[int]) -> Iterator[Tensor]:
    """Yield log probabilities [T, vocab] float32 of the next tokens, a forward at a time."""
    config = load_config(folder)
    assert isinstance(config, DeltaNetConfig)
    model = Qwen35Model(
        config, load_weights(folder, config, torch.float32), FormedBackend(config, form)
    )
    slabs = 16 + len(tokens) // 64
    request = Request(Workspace(model, slabs, ssm_dtype=form.dtype), len(tokens))
    for begin in range(0, len(tokens), FORWARD):
        batch = Batch.pack([request.slice(tokens[begin : begin + FORWARD])])
        hidden = final_hidden(model, batch, request.workspace.arena)
        yield logits_of(model, hidden).log_softmax(-1)


@dataclass(frozen=True)
class Cost:
    """Mean divergence of two models in nats, and their share of equal top tokens, by token."""

    divergence: Tensor
    equal: Tensor

    @staticmethod
    def of(folder: Path, form: StateForm, want: list[Tensor], tokens: list[int]) -> "Cost":
        """Return a form's cost. want: the forwards in float32."""
        divergences, equals = [], []
        for exact, got in zip(want, forwards(folder, form, tokens), strict=True):
            divergences.append((exact.exp() * (exact - got)).sum(-1, dtype=torch.float64))
            equals.append((exact.argmax(-1) == got.argmax(-1)).double())
        return Cost(torch.cat(divergences), torch.cat(equals))

    def line(self, tokens: slice) -> str:
        return f"KL {self.divergence[tokens].mean():.7f} equal {self.equal[tokens].mean():.4f}"


def compare(folder: Path, tokens: list[int]) -> None:
    """Print each form's cost: of all tokens, of the first and of the last eighth."""
    want = [*forwards(folder, EXACT, tokens)]
    eighth = len(tokens) // 8
    parts = {"all": slice(None), "first": slice(eighth), "last": slice(-eighth, None)}
    for name, form in FORMS.items():
        cost = Cost.of(folder, form, want, tokens)
        shown = "; ".join(f"{part}: {cost.line(where)}" for part, where in parts.items())
        print(f"{name:<18} {shown}", flush=True)
