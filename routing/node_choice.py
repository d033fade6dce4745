"""The choice of a decode node for a session, among the few nodes with known loads.

Pure: equal loads give equal choices. A draining node is worst. Next is a node whose next answer
would wait or find little memory. Next is a node with a clearly longer step. Among the rest, the
node with the fewest answers for its size wins, then the node with the fewest sessions placed by
this caller. The last rule is needed because loads queried at the same moment are often equal.

The prefill node for a prompt: its cost at each node, the route, and the copy of a state.

Pure: equal requests, candidates and loads give equal choices on every node.
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
"""Seconds below which a difference in cost counts as a tie: the node with the fewest stored seconds
is selected."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate in the choice of a prefill node for one prompt, by cost in seconds.

    cost = wait + prefill + exposed + (REUSE - 1) x (new + exposed) + CROWDING x share x (new -
    fixed)

    wait: earlier work of the node. prefill: compute time for tokens not in its cache. exposed:
    transfer time not hidden by prefill, with loads from a lower tier. new: compute time for tokens
    never sent to the node, cached or not; equal to prefill if this is unknown. share: work stored
    lately by the node; the candidates' mean is 1. New states evict others, most of all on the node
    with most stored. New work counts REUSE times, because a copy on another node costs every later
    turn. Pure. Source of the weights: docs/routing.md.

    usable: tokens of the prompt in the node's cache with their state. wait, exposed: seconds.
    stored: seconds of prefill stored lately as states. sent: length in tokens of the longest prefix
    shared with a prompt sent there lately.
    """

    node: int
    usable: int
    wait: float
    exposed: float
    stored: float
    sent: int = 0


@dataclass(frozen=True, slots=True)
class Bid:
    """A candidate with its cost in seconds."""

    candidate: Candidate
    prefill: float
    cost: float


def bids(candidates: Sequence[Candidate], prompt_tokens: int, seconds: PrefillSeconds) -> list[Bid]:
    """Return each candidate's bid, cheapest first. Among equal costs, the node with the least
    stored work is first, then the first candidate. REQUIRES: there is one."""
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
    """Return True if the second choice is cheaper, given the chosen node's present wait."""
    return chosen.cost + present_wait - chosen.candidate.wait > second.cost + TIE_SECONDS


def _cost(bid: Bid) -> float:
    return bid.cost


def _stored(bid: Bid) -> float:
    return bid.candidate.stored


def rendezvous(key: bytes, nodes: Iterable[str]) -> str:
    """Return the key's node by rendezvous hashing, for use without better knowledge.

    Pure. A removed node moves its own keys and no others (Thaler and Ravishankar, 1998).

    REQUIRES: there is a node.
    """
    return max(nodes, key=lambda node: (_weight(key, node), node))


def _weight(key: bytes, node: str) -> bytes:
    return blake2b(
        key, digest_size=16, person=blake2b(node.encode(), digest_size=16).digest()
    ).digest()


RouteName = Literal["auto", "cost", "fixed", "fewest-rooms", "sticky"]
SAMPLED_ABOVE = 64
"""Above this fleet size, a choice considers only the deepest holders and a few more nodes."""
HOLDERS = 32
DRAWN = 8
_CROWDED_MEANS, _CROWDED_TRANSFERS = 2, 4
"""Limits of a choice by hash: a node with more transfers than this multiple of the mean, plus this
number, is not chosen."""


class Reason(Enum):
    """The reason for a decode node's choice among its prefill nodes.

    Pure: equal requests, candidates and loads give equal choices on every node. A node is a number
    given by the caller.

    only: no other node was left. cost: the cheapest. stale: by hash, because reports of the nodes'
    caches are stale. sticky: by hash, as configured. fewest_rooms: as configured. moved: the second
    choice, after the first one reported its wait. gateway: named by the gateway.
    """

    ONLY = "only"
    COST = "cost"
    STALE = "stale"
    STICKY = "sticky"
    FEWEST_TRANSFERS = "fewest_rooms"
    MOVED = "moved"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Choice:
    """bids: bids of all considered nodes, cheapest first, with the chosen one. second: the cheapest
    of the others, if any."""

    reason: Reason
    chosen: Bid
    bids: Sequence[Bid]

    @property
    def second(self) -> Bid | None:
        return next((bid for bid in self.bids if bid is not self.chosen), None)


def looked_at(nodes: Sequence[int], known: Collection[int], random: Random) -> Sequence[int]:
    """Return the nodes to consider. known: at most HOLDERS nodes with the longest cached prefixes,
    and the nodes with similar prompts."""
    if len(nodes) <= SAMPLED_ABOVE:
        return nodes
    return [*dict.fromkeys([*known, *random.sample(nodes, DRAWN)])]


def by_hash(key: bytes, names: Mapping[int, str], transfers: Mapping[int, int]) -> int:
    """Return the key's node by hash, among the nodes not too crowded. names: names of all nodes.
    rooms: this decider's live transfers by node. REQUIRES: there is a node."""
    crowded = _CROWDED_MEANS * sum(transfers.values()) / len(names) + _CROWDED_TRANSFERS
    numbers = {name: node for node, name in names.items() if transfers.get(node, 0) <= crowded}
    return numbers[rendezvous(key, numbers)]


def by_transfers(nodes: Sequence[int], transfers: Mapping[int, int]) -> int:
    """Return the node with the fewest transfers; of equals the lowest number. REQUIRES: there is a
    node."""
    return min(nodes, key=lambda node: (transfers.get(node, 0), node))


def reason_of(route: RouteName, fresh: bool) -> Reason:
    """Return the rule for a choice between several nodes. fresh: the contents of the nodes' caches
    are known."""
    if route in ("fewest-rooms", "fixed"):
        return Reason.FEWEST_TRANSFERS
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
    """Return the choice. picked: a candidate selected by another rule than cost; None: select by
    cost. REQUIRES: there is a candidate."""
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
    """Return True if copying a state costs less than computing it again. The copy goes from the
    prefill node with the state, through a decode node, to the prefill node without it. Pure.

    copy = 2 x (fixed + each x tokens)       seconds; computing costs prefill of the same tokens

    fixed and each are measured for pulls by the node without the state. They are paid twice, since
    the bytes go to the decode node first. The decode node needs the KV in any case and does not get
    it again; this gain is left out.

    usable: tokens with a state on the computing node. held: the same on the other node. pull: fixed
    seconds, and seconds for each token; None: copy if at least twice `at_least` tokens are missing.
    """
    tokens = held - usable
    if tokens <= 0:
        return False
    if pull is None:
        return tokens >= WAYS * at_least
    fixed, each = pull
    return WAYS * (fixed + each * tokens) < seconds.between(usable, held)


LEAST_FREE_KV = 0.125
"""Share of a node's pages. With less free KV, a new answer would take another's memory."""
NEAR = 1.25
"""Steps within this factor are equal, because they vary as much from second to second."""
CLEARLY_SHORTER = 0.8
"""A session moves only for steps of at most this share of its own. So it does not move back and
forth."""


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """A node's load, as in SessionLoadResponse. placed: the caller's sessions on the node."""

    step_seconds: float | None
    busy: float
    free_kv: float
    draining: bool
    placed: int = 0

    @property
    def pace(self) -> float | None:
        """Return the seconds between an answer's tokens. Answers take turns if there are too
        many."""
        return None if self.step_seconds is None else self.step_seconds * max(1.0, self.busy)

    @property
    def has_room(self) -> bool:
        return self.busy < 1 and self.free_kv >= LEAST_FREE_KV


def choose_decode_node(loads: Mapping[str, DecodeLoad]) -> str:
    """Return the best node by load. REQUIRES: there is a node."""
    left = {node: load for node, load in loads.items() if not load.draining} or dict(loads)
    left = {node: load for node, load in left.items() if load.has_room} or left
    shortest = min(load.pace or 0.0 for load in left.values())
    near = {node: load for node, load in left.items() if (load.pace or 0.0) <= NEAR * shortest}
    return min(near, key=lambda node: (near[node].busy, near[node].placed))


def is_worth_a_move(here: DecodeLoad, there: DecodeLoad, target: float) -> bool:
    """Return True if a session with a missed `target` (seconds between tokens) can expect better on
    the other node."""
    if there.draining or not there.has_room:
        return False
    if here.pace is None or there.pace is None:
        return there.busy < CLEARLY_SHORTER * here.busy
    return there.pace <= min(target, CLEARLY_SHORTER * here.pace)
