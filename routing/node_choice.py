"""The choice of a decode node for a session, among the few whose loads were asked for.

Pure: equal loads give equal choices. What makes a node worse, first things first: that it takes
nothing new, that one answer more would wait or finds little memory, that a step takes clearly
longer. Between those that are left, the one with the fewest answers for its size, then the one that
the caller has placed least on: loads that were asked for at the same moment are equal all day.

The prefill node for a prompt: its cost at each node, the route, and the copy of a state.

Pure: equal requests, candidates and loads give equal choices, whichever node decides.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from random import Random
from typing import Literal

from .node_load import PrefillSeconds

REUSE = 16.0
CROWDING = 8.0
TIE_SECONDS = 0.005
"""Costs that differ by less are equal: the node that stored least is chosen."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The choice of a prefill node for one prompt, by cost in seconds.

    cost = wait + prefill + exposed + (REUSE - 1) x (new + exposed) + CROWDING x share x (new -
    fixed) wait: of what the node has to do before. prefill: of what its cache does not hold.
    exposed: of the transfer, what no prefill hides, loads from a lower tier included. new: of what
    was never sent there, held or not; where nothing is known of that, prefill. share: what the node
    stored lately, where the mean of the candidates is 1: new states crowd out others, and most
    where most was stored. What is new counts REUSE times, for a copy on another node costs every
    later turn. Pure. Source of the weights: docs/routing.md.

    usable: tokens of the prompt that the node's cache holds with their state. wait, exposed:
    seconds. stored: seconds of prefill whose states it stored lately. sent: tokens with which a
    prompt that went there lately began alike.
    """

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


def rendezvous(key: bytes, nodes: Iterable[str]) -> str:
    """Rendezvous hashing: where a key belongs while nothing better is known.

    Pure. A node that goes moves its own keys and no others (Thaler and Ravishankar, 1998).

    The node of the key. REQUIRES: there is a node.
    """
    return max(nodes, key=lambda node: (_weight(key, node), node))


def _weight(key: bytes, node: str) -> bytes:
    return blake2b(
        key, digest_size=16, person=blake2b(node.encode(), digest_size=16).digest()
    ).digest()


RouteName = Literal["auto", "cost", "fixed", "fewest-rooms", "sticky"]
SAMPLED_ABOVE = 64
"""Of a larger fleet a choice looks at the deepest holders and at a few more nodes."""
HOLDERS = 32
DRAWN = 8
_CROWDED_MEANS, _CROWDED_ROOMS = 2, 4
"""A node with more rooms than so many times the mean and so many more is no hash's choice."""


class Reason(Enum):
    """Which of the prefill nodes that a decode node sees a prompt goes to, and why.

    Pure: equal requests, candidates and loads give equal choices, whichever node decides. A node is
    a number that the caller gives.

    only: no other node was left. cost: the cheapest. stale: by hash, for want of news of what nodes
    hold. sticky: by hash, as asked. fewest_rooms: as asked. moved: the second choice, once the
    first one had said how much it has to do. gateway: it named the node.
    """

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


WAYS = 2


def copy_pays(
    usable: int,
    held: int,
    seconds: PrefillSeconds,
    pull: tuple[float, float] | None,
    at_least: int,
) -> bool:
    """When a state is brought from the prefill node that holds it to the one that needs it, by way
    of a decode node, instead of being computed there anew. Pure.

    copy = 2 x (fixed + each x tokens)       seconds; computing costs prefill of the same tokens Of
    a pull, fixed and each are what the node that needs it has measured. It is paid twice, since the
    bytes go to the decode node first. What of the first way is not lost is left out: the decode
    node needs the KV in any case, and is not sent it again.

    usable: tokens whose state the node has that is to compute a prompt; held: the other one. pull:
    seconds of any and of each token; where they are not known, so many tokens are copied as are
    twice `at_least`.
    """
    tokens = held - usable
    if tokens <= 0:
        return False
    if pull is None:
        return tokens >= WAYS * at_least
    fixed, each = pull
    return WAYS * (fixed + each * tokens) < seconds.between(usable, held)


LEAST_FREE_KV = 0.125
"""Of a node's pages: below that, an answer that begins soon takes another's room."""
NEAR = 1.25
"""Steps that differ by less are equal: they vary as much from second to second."""
CLEARLY_SHORTER = 0.8
"""A session moves for steps of so many times its own, and not for less, so that none goes to and
fro."""


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """As SessionLoadResponse says. placed: sessions that the caller has there."""

    step_seconds: float | None
    busy: float
    free_kv: float
    draining: bool
    placed: int = 0

    @property
    def pace(self) -> float | None:
        """Seconds between an answer's tokens, where answers take turns once there are too many."""
        return None if self.step_seconds is None else self.step_seconds * max(1.0, self.busy)

    @property
    def has_room(self) -> bool:
        return self.busy < 1 and self.free_kv >= LEAST_FREE_KV


def choose_decode_node(loads: Mapping[str, DecodeLoad]) -> str:
    """By node. REQUIRES: there is one."""
    left = {node: load for node, load in loads.items() if not load.draining} or dict(loads)
    left = {node: load for node, load in left.items() if load.has_room} or left
    shortest = min(load.pace or 0.0 for load in left.values())
    near = {node: load for node, load in left.items() if (load.pace or 0.0) <= NEAR * shortest}
    return min(near, key=lambda node: (near[node].busy, near[node].placed))


def is_worth_a_move(here: DecodeLoad, there: DecodeLoad, target: float) -> bool:
    """Whether a session whose tokens came later than `target` seconds after each other has reason
    to hope for better."""
    if there.draining or not there.has_room:
        return False
    if here.pace is None or there.pace is None:
        return there.busy < CLEARLY_SHORTER * here.busy
    return there.pace <= min(target, CLEARLY_SHORTER * here.pace)
