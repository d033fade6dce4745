"""How the logits of each lane are adjusted before a token is drawn from them, and the tokens that
this depends on.

Owns a `LogitAdjuster` of every lane whose request asks for one; knows neither pages nor forwards.
Thread rule: the runner's. Invariant: whoever draws from adjusted logits gives a lane's adjuster
every token that was drawn before, in order.
"""

from collections.abc import Sequence

from torch import Tensor

from tasuki.engine.forward_plan import ForwardPlan
from tasuki.model.config import ModelConfig
from tasuki.model.ops.sampling.logit_adjustments import AdjustedRows, LogitAdjuster, adjusted
from tasuki.model.ops.sampling.reference import stop_ids


class LaneAdjustments:
    def __init__(self, model: ModelConfig) -> None:
        self._eos_ids = model.eos_ids
        self._vocab = model.vocab
        self._adjusters: dict[int, LogitAdjuster] = {}

    def apply(self, plan: ForwardPlan) -> None:
        """Take over who leaves and who joins."""
        for lane in plan.left:
            self._adjusters.pop(lane, None)
        for item in plan.joined:
            if item.before is not None:
                ends = stop_ids(item.sampling, self._eos_ids)
                self._adjusters[item.lane] = LogitAdjuster(
                    item.sampling, ends, self._vocab, item.before
                )

    def of(self, lane: int) -> LogitAdjuster | None:
        return self._adjusters.get(lane)

    def adjuster(self, lane: int) -> LogitAdjuster:
        """REQUIRES: the lane's request adjusts."""
        return self._adjusters[lane]

    def scores(self, logits: Tensor, lanes: Sequence[int]) -> Tensor | None:
        """Row i of logits [n, vocab] as lanes[i] adjusts it, float32; None where none does."""
        rows = [row for row, lane in enumerate(lanes) if lane in self._adjusters]
        if not rows:
            return None
        scores = logits.float().clone()
        some = AdjustedRows.of([self._adjusters[lanes[row]] for row in rows])
        scores[rows] = adjusted(logits[rows], some.to(logits.device))
        return scores
