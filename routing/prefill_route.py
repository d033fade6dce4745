"""Which of the prefill nodes that a decode node sees a prompt goes to, and why.

Pure: equal requests, candidates and loads give equal choices, whichever node decides. A node is a
number that the caller gives.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Literal

from .prefill_choice import Bid, Candidate, bids
from .prefill_seconds import PrefillSeconds
from .rendezvous import rendezvous

RouteName = Literal["auto", "cost", "fixed", "fewest-rooms", "sticky"]
SAMPLED_ABOVE = 64
"""Of a larger fleet a choice looks at the deepest holders and at a few more nodes."""
HOLDERS = 32
DRAWN = 8
_CROWDED_MEANS, _CROWDED_ROOMS = 2, 4
"""A node with more rooms than so many times the mean and so many more is no hash's choice."""


class Reason(Enum):
    """only: no other node was left. cost: the cheapest. stale: by hash, for want of news of what
    nodes hold. sticky: by hash, as asked. fewest_rooms: as asked. moved: the second choice, once
    the first one had said how much it has to do. gateway: it named the node."""

    ONLY = "only"
    COST = "cost"
    STALE = "stale"
    STICKY = "sticky"
    FEWEST_ROOMS = "fewest_rooms"
    MOVED = "moved"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Choice:
    """bids: of all that were looked at, cheapest first, the chosen one's among them. second: the
    cheapest of the others, where there is one."""

    reason: Reason
    chosen: Bid
    bids: Sequence[Bid]

    @property
    def second(self) -> Bid | None:
        return next((bid for bid in self.bids if bid is not self.chosen), None)


def looked_at(nodes: Sequence[int], known: Collection[int], random: Random) -> Sequence[int]:
    """Those of the nodes that are weighed. known: some of them, HOLDERS of those that hold most and
    those that prompts which begin alike were sent to."""
    if len(nodes) <= SAMPLED_ABOVE:
        return nodes
    return [*dict.fromkeys([*known, *random.sample(nodes, DRAWN)])]


def by_hash(key: bytes, names: Mapping[int, str], rooms: Mapping[int, int]) -> int:
    """The node that the key belongs to, unless too much has come to it already. names: of all
    nodes. rooms: live ones that this decider has there. REQUIRES: there is a node."""
    crowded = _CROWDED_MEANS * sum(rooms.values()) / len(names) + _CROWDED_ROOMS
    numbers = {name: node for node, name in names.items() if rooms.get(node, 0) <= crowded}
    return numbers[rendezvous(key, numbers)]


def by_rooms(nodes: Sequence[int], rooms: Mapping[int, int]) -> int:
    """The node with the fewest; of equals the lowest. REQUIRES: there is a node."""
    return min(nodes, key=lambda node: (rooms.get(node, 0), node))


def reason_of(route: RouteName, fresh: bool) -> Reason:
    """What decides between several nodes. fresh: whether it is known what they hold."""
    if route in ("fewest-rooms", "fixed"):
        return Reason.FEWEST_ROOMS
    if route == "sticky":
        return Reason.STICKY
    return Reason.COST if fresh or route == "cost" else Reason.STALE


def choose(
    reason: Reason,
    candidates: Sequence[Candidate],
    prompt_tokens: int,
    seconds: PrefillSeconds,
    picked: int | None,
) -> Choice:
    """picked: the node that something else than cost has decided on, a candidate; None where costs
    decide. REQUIRES: there is a candidate."""
    found = bids(candidates, prompt_tokens, seconds)
    if len(found) == 1 and reason not in (Reason.MOVED, Reason.GATEWAY):
        return Choice(Reason.ONLY, found[0], found)
    if picked is None:
        return Choice(reason, found[0], found)
    return Choice(reason, next(bid for bid in found if bid.candidate.node == picked), found)
