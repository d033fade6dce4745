"""Choice of a decode node for a session, and of a prefill node for a prompt. Pure.

Equal requests, candidates and loads give equal choices on every node.

Decode nodes are ranked by load. A draining node is worst. Next is a node whose next answer would
wait or find little memory. Next is a node with a clearly longer step. Among the rest, the node with
the fewest answers for its size wins, then the node with the fewest sessions placed by this caller.
The last rule is needed because loads queried at the same moment are often equal.

For a prompt the module has each prefill node's cost, the routes, and the decision to copy a state.
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
"""Largest difference in cost, in seconds, to count as a tie; the candidate with the least work
stored lately is then chosen."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Candidate in the choice of a prefill node for one prompt, by cost in seconds.

    cost = wait + prefill + exposed + (REUSE - 1) x (new + exposed) + CROWDING x share x (new -
    fixed)

    wait: seconds of earlier work on the node. prefill: compute time of the tokens not in its cache.
    exposed: transfer time not hidden by prefill, with loads from a lower tier. new: compute time of
    the tokens never sent to the node, cached or not; equal to prefill if this is unknown. share:
    work stored lately by the node, relative to the candidates' mean. fixed: fixed time of any
    prefill. New states evict others, most of all on the node with most stored. New work counts
    REUSE times, because a copy on another node costs every later turn. Pure. Source of the weights:
    docs/routing.md.

    node: its number. usable: tokens of the prompt in the node's cache with their state. stored:
    seconds of prefill stored lately as states. sent: length in tokens of the longest prefix shared
    with a prompt sent to the node lately.
    """

    node: int
    usable: int
    wait: float
    exposed: float
    stored: float
    sent: int = 0


@dataclass(frozen=True, slots=True)
class Bid:
    """Candidate node with its prefill time and its cost for the prompt, in seconds."""

    candidate: Candidate
    prefill: float
    cost: float


def bids(candidates: Sequence[Candidate], prompt_tokens: int, seconds: PrefillSeconds) -> list[Bid]:
    """Return each candidate's bid (candidate with cost), cheapest first. Among the cheapest within
    TIE_SECONDS, the node with the least stored work comes first. seconds: cost of a prefill by its
    tokens. REQUIRES: there is a candidate."""
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
    """Return True if the second bid is cheaper than the chosen one by over TIE_SECONDS.
    present_wait: the chosen node's wait now, in seconds."""
    return chosen.cost + present_wait - chosen.candidate.wait > second.cost + TIE_SECONDS


def _cost(bid: Bid) -> float:
    return bid.cost


def _stored(bid: Bid) -> float:
    return bid.candidate.stored


def rendezvous(key: bytes, nodes: Iterable[str]) -> str:
    """Return the node for a key by rendezvous hashing, used if no costs are known.

    Pure. Removing a node moves only the node's own keys (Thaler and Ravishankar, 1998).

    REQUIRES: there is a node.
    """
    return max(nodes, key=lambda node: (_weight(key, node), node))


def _weight(key: bytes, node: str) -> bytes:
    return blake2b(
        key, digest_size=16, person=blake2b(node.encode(), digest_size=16).digest()
    ).digest()


RouteName = Literal["auto", "cost", "fixed", "fewest-rooms", "sticky"]
SAMPLED_ABOVE = 64
"""Fleet size above which a choice considers only the nodes with the longest held prefixes and a few
random ones."""
HOLDERS = 32
DRAWN = 8
_CROWDED_MEANS, _CROWDED_TRANSFERS = 2, 4
"""Limits of a choice by hash: a node is skipped if it has more live transfers than this multiple of
the mean, plus this number."""


class Reason(Enum):
    """Reason for a decode node's choice among its prefill nodes. Nodes are numbers given by the
    caller.

    only: no other node was left. cost: the cheapest. stale: by hash, because reports of the nodes'
    caches are old. sticky: by hash, as configured. fewest_rooms: the node with the fewest
    transfers, as configured. moved: the second-best node, after the chosen one reported its wait.
    gateway: named by the gateway.
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
    """Choice of a prefill node. chosen: the chosen node's bid (node with cost). bids: bids of all
    considered nodes, cheapest first, the chosen one included. second: the cheapest other bid; None
    without one."""

    reason: Reason
    chosen: Bid
    bids: Sequence[Bid]

    @property
    def second(self) -> Bid | None:
        return next((bid for bid in self.bids if bid is not self.chosen), None)


def looked_at(nodes: Sequence[int], known: Collection[int], random: Random) -> Sequence[int]:
    """Return the numbers of the nodes to consider. Up to SAMPLED_ABOVE nodes they are all; else the
    known and DRAWN random ones. known: at most HOLDERS nodes with the longest cached prefixes, and
    the nodes sent similar prompts."""
    if len(nodes) <= SAMPLED_ABOVE:
        return nodes
    return [*dict.fromkeys([*known, *random.sample(nodes, DRAWN)])]


def by_hash(key: bytes, names: Mapping[int, str], transfers: Mapping[int, int]) -> int:
    """Return the number of the key's node by hash, among the nodes with few enough live transfers.
    names: names of all nodes, by number. transfers: the deciding node's live transfers, by node
    number. REQUIRES: there is a node."""
    crowded = _CROWDED_MEANS * sum(transfers.values()) / len(names) + _CROWDED_TRANSFERS
    numbers = {name: node for node, name in names.items() if transfers.get(node, 0) <= crowded}
    return numbers[rendezvous(key, numbers)]


def by_transfers(nodes: Sequence[int], transfers: Mapping[int, int]) -> int:
    """Return the number of the node with the fewest live transfers; among equals the lowest number.
    REQUIRES: there is a node."""
    return min(nodes, key=lambda node: (transfers.get(node, 0), node))


def reason_of(route: RouteName, fresh: bool) -> Reason:
    """Return the rule for choosing between several nodes, as the reason for the choice. fresh: True
    if the contents of the nodes' caches are known; else route `auto` is by hash."""
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
    """Return the choice of a prefill node, with all bids. Its reason is ONLY with one candidate,
    unless `reason` is MOVED or GATEWAY. picked: number of a node chosen by another rule than cost;
    None: choose by cost. REQUIRES: there is a candidate."""
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

    usable: tokens with a state on the node without the copied state. held: tokens with a state on
    the other node. pull: (fixed seconds, seconds for each token); None: copy if at least twice
    `at_least` tokens are missing.
    """
    tokens = held - usable
    if tokens <= 0:
        return False
    if pull is None:
        return tokens >= WAYS * at_least
    fixed, each = pull
    return WAYS * (fixed + each * tokens) < seconds.between(usable, held)


LEAST_FREE_KV = 0.125
"""Least free share of a node's KV pages for a new answer: with less, it would take another answer's
memory."""
NEAR = 1.25
"""Factor within which decode step times count as equal, because they vary as much from second to
second."""
CLEARLY_SHORTER = 0.8
"""Largest step time for moving a session to a node, as a share of the present node's. So a session
does not move back and forth."""


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """Load of a decode node, as in SessionLoadResponse. step_seconds: time of a step with one more
    answer; None if unknown. busy: requests in flight, divided by the number able to run at a time.
    free_kv: share of its KV pages without a request. placed: sessions of this caller on the
    node."""

    step_seconds: float | None
    busy: float
    free_kv: float
    draining: bool
    placed: int = 0

    @property
    def pace(self) -> float | None:
        """Return the seconds between two tokens of an answer: the step's, longer if more answers
        are in flight than can run. None if no step is known."""
        return None if self.step_seconds is None else self.step_seconds * max(1.0, self.busy)

    @property
    def has_room(self) -> bool:
        return self.busy < 1 and self.free_kv >= LEAST_FREE_KV


def choose_decode_node(loads: Mapping[str, DecodeLoad]) -> str:
    """Return the name of the best decode node by load. A draining or full node is chosen only
    without any other. Of nearly equal step times the least busy node is best. loads: by name.
    REQUIRES: there is a node."""
    left = {node: load for node, load in loads.items() if not load.draining} or dict(loads)
    left = {node: load for node, load in left.items() if load.has_room} or left
    shortest = min(load.pace or 0.0 for load in left.values())
    near = {node: load for node, load in left.items() if (load.pace or 0.0) <= NEAR * shortest}
    return min(near, key=lambda node: (near[node].busy, near[node].placed))


def is_worth_a_move(here: DecodeLoad, there: DecodeLoad, target: float) -> bool:
    """Return True if a session should move from node `here` to node `there`, because `here` missed
    its target. `there` must have room, not drain, and be clearly faster (less busy, if a pace is
    unknown). target: seconds between tokens."""
    if there.draining or not there.has_room:
        return False
    if here.pace is None or there.pace is None:
        return there.busy < CLEARLY_SHORTER * here.busy
    return there.pace <= min(target, CLEARLY_SHORTER * here.pace)
