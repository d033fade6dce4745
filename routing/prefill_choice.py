"""The choice of a prefill node for one prompt, by cost in seconds.

    cost = wait + prefill + exposed
           + (REUSE - 1) x (new + exposed) + CROWDING x share x (new - fixed)

wait: of what the node has to do before. prefill: of what its cache does not hold. exposed: of the
transfer, what no prefill hides, loads from a lower tier included. new: of what was never sent
there, held or not; where nothing is known of that, prefill. share: what the node stored lately,
where the mean of the candidates is 1: new states crowd out others, and most where most was stored.
What is new counts REUSE times, for a copy on another node costs every later turn.
Pure. Source of the weights: docs/routing.md.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from .prefill_seconds import PrefillSeconds

REUSE = 16.0
CROWDING = 8.0
TIE_SECONDS = 0.005
"""Costs that differ by less are equal: the node that stored least is chosen."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """usable: tokens of the prompt that the node's cache holds with their state. wait, exposed:
    seconds. stored: seconds of prefill whose states it stored lately. sent: tokens with which a
    prompt that went there lately began alike."""

    node: int
    usable: int
    wait: float
    exposed: float
    stored: float
    sent: int = 0


@dataclass(frozen=True, slots=True)
class Bid:
    """A candidate with what it would cost, seconds."""

    candidate: Candidate
    prefill: float
    cost: float


def bids(candidates: Sequence[Candidate], prompt_tokens: int, seconds: PrefillSeconds) -> list[Bid]:
    """Of each candidate, cheapest first; of equals the first candidate. REQUIRES: there is one."""
    mean = sum([candidate.stored for candidate in candidates]) / len(candidates)
    crowding = CROWDING / mean if mean > 0 else 0.0
    found = []
    for candidate in candidates:
        prefill = seconds.between(candidate.usable, prompt_tokens)
        known = min(candidate.sent, prompt_tokens)
        new = seconds.between(known, prompt_tokens) if known > candidate.usable else prefill
        again = (REUSE - 1) * (new + candidate.exposed)
        crowded = crowding * candidate.stored * (new - seconds.fixed)
        cost = candidate.wait + prefill + candidate.exposed + again + crowded
        found.append(Bid(candidate, prefill, cost))
    found.sort(key=_cost)
    tied = bisect_right(found, found[0].cost + TIE_SECONDS, key=_cost)
    found[:tied] = sorted(found[:tied], key=_stored)
    return found


def should_move(chosen: Bid, second: Bid, present_wait: float) -> bool:
    """Whether the second choice is cheaper, now that the chosen node says how long its wait is."""
    return chosen.cost + present_wait - chosen.candidate.wait > second.cost + TIE_SECONDS


def _cost(bid: Bid) -> float:
    return bid.cost


def _stored(bid: Bid) -> float:
    return bid.candidate.stored
