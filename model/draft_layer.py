"""The layer that drafts tokens (published as `mtp.*`): what it keeps of every token, and its guess.

Entry j, at position j >= 1, is the layer's key and value of token j and of the model's final hidden
state of token j - 1. So it depends on tokens 0 to j, as the model's own entries do, and may stand
in a page that prompts share; what is left over is the hidden state behind the last token, which is
carried in the slot. Entry 0 is of a hidden state of zeros: it is written and never attended to.

Owns nothing; computes with the plan of the forward that it follows. Its entries need no attention
and no feed-forward, so a forward costs a product with two rows of heads more.
"""

from torch import Tensor

from tasuki.model.backends.base import EntryOperators, StepEntries
from tasuki.model.weights.layers import DraftWeights, ModelWeights
from tasuki.pycache.arena import Arena


class NoDraftLayer(Exception):
    """An arena has a draft layer that this model cannot compute."""


def of_model(weights: ModelWeights) -> DraftWeights:
    """Raises NoDraftLayer."""
    if weights.draft is None:
        raise NoDraftLayer(
            "the arena has a draft layer, for which the model has no weights: serve it with "
            "--draft-layer off"
        )
    return weights.draft


def keep_entries(
    tokens: Tensor, hidden: Tensor, weights: ModelWeights, entries: EntryOperators, arena: Arena
) -> None:
    """Write the entries of a forward's tokens into their pages, and what is carried over into every
    slot that the forward writes. tokens [T]; hidden [T, width]: after the model's final norm.
    Raises NoDraftLayer."""
    draft, carry = of_model(weights), arena.carry[0]
    entries.write(tokens, hidden, weights.embedding, draft, arena.kv[-1], carry)
    entries.carry_over(hidden, carry)


def begin_step(tokens: Tensor, weights: ModelWeights, entries: StepEntries, arena: Arena) -> None:
    """Start to write the entries of a decode step's tokens [B], beside what follows. Raises
    NoDraftLayer."""
    draft = of_model(weights)
    with entries.beside():
        entries.write(tokens, None, weights.embedding, draft, arena.kv[-1], arena.carry[0])
