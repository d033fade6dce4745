"""The page's views as JSON values: overview, requests, sessions, faults, evictions and the tree.

Pure functions of a history; the page draws and decides nothing. tree_view() lists a bounded number
of the radix tree's nodes, parents before children.
"""

from typing import Any

from tasuki.dashboard.health import Standing, health
from tasuki.engine.messages import RequestPhase
from tasuki.pycache.packed import PackedTree, TreeNode

from .node_history import NodeHistory
from .rates import FIRST, LATER, QUEUED

_LISTED, _RUNNING = 200, 100
_RECENT_SECONDS = 60
_LOST = "lost."
_QUEUED_STATES = frozenset(str(phase) for phase in RequestPhase if phase.is_queued)
_STANDING = Standing()
_SESSIONS, _TURNS = 24, 24
"""Largest number of plotted sessions, and of turns of each, so a redraw fits into a frame."""


def overview(
    history: NodeHistory, now: float, seconds: int, points: int, standing: Standing = _STANDING
) -> dict[str, Any]:
    """Return the top of the page as JSON: figures, waterfall, drafts, the estimate for a larger
    arena, both pools, and counts of requests, sessions and faults. standing: the node's own present
    state."""
    return {
        "at": now,
        "events": history.journal.end,
        "figures": figures(history, now, standing),
        "totals": dict(history.hits.totals),
        "hits": history.hits.series(now, seconds, points),
        "drafts": history.drafts.answer(),
        "what_if": history.what_if.answer(),
        "pools": history.pools.last,
        "series": history.pools.series(seconds, points),
        "first_tokens": history.pace.series(now, seconds, points),
        "in_flight": history.requests.in_flight,
        "ended": history.requests.ends,
        "sessions": len(history.sessions),
        "faults": dict(history.faults.counts),
    }


def figures(history: NodeHistory, now: float, standing: Standing) -> dict[str, Any]:
    """Return the node's health and the last minute in numbers. A number is None if it is not known.
    queued: seconds in queues. sampled_at: time of the sample behind waiting, running, memory and
    pictures. pictures: None for a node that sees none."""
    pools = history.pools.last
    recent_faults = history.faults.recent(now - _RECENT_SECONDS)
    pace = history.pace.latest(now)
    hits = history.hits.latest(now, _RECENT_SECONDS)
    prompt = hits["prompt"]
    lost = {name.removeprefix(_LOST): n for name, n in hits.items() if name.startswith(_LOST) and n}
    states = {} if pools is None else pools["requests"]
    waiting = sum(number for state, number in states.items() if state in _QUEUED_STATES)
    return {
        "health": health(standing, pools or {}, recent_faults, now),
        "ended": pace["ended"],
        "output_rate": history.pools.output_rate(_RECENT_SECONDS),
        "prompt_rate": prompt / _RECENT_SECONDS,
        "ttft": pace[FIRST],
        "itl": pace[LATER],
        "queued": pace[QUEUED],
        "sampled_at": None if pools is None else pools["at"],
        "waiting": None if pools is None else waiting,
        "running": None if pools is None else sum(states.values()) - waiting,
        "hit": {"prompt": prompt, "usable": hits["usable"], "lost": lost} if prompt else None,
        "memory": None if pools is None else pools.get("memory"),
        "pictures": None if pools is None else pools.get("pictures"),
    }


def requests(history: NodeHistory) -> list[dict[str, Any]]:
    """Return the newest running requests, with `ended_at` None, then the newest ended ones, each
    newest first."""
    return [*history.requests.running(_RUNNING), *history.requests.latest(_LISTED)]


def handovers(history: NodeHistory) -> list[dict[str, Any]]:
    """Return summaries of the ended requests with a known hand-over timeline, newest first."""
    return history.requests.handed_over()


def sessions(history: NodeHistory) -> list[dict[str, Any]]:
    """Return the last _SESSIONS used sessions with their last _TURNS turns, the last used one
    first."""
    latest = history.sessions.latest(_SESSIONS)
    return [{**session, "turns": session["turns"][-_TURNS:]} for session in latest]


def faults(history: NodeHistory) -> dict[str, Any]:
    return {"counts": dict(history.faults.counts), "entries": history.faults.latest(_LISTED)}


def evictions(history: NodeHistory) -> list[dict[str, Any]]:
    return list(history.evictions)[: -_LISTED - 1 : -1]


def tree_view(view: PackedTree) -> list[dict[str, Any]]:
    """Return a row for each node of the radix tree. `above`: index of its parent's row. `hidden`:
    the part of its subtree without rows."""
    return [_node(node) for node in view]


def _node(node: TreeNode) -> dict[str, Any]:
    return {
        "name": None if node.name is None else f"{node.name[0]}.{node.name[1]}",
        "above": node.above,
        "depth": node.depth,
        "tokens": node.tokens,
        "children": node.children,
        "state": node.state,
        "tails": node.tails,
        "leases": node.allocations,
        "state_pins": node.state_pins,
        "protected": node.is_protected,
        "unused": node.unused,
        "standing": vars(node.standing),
        "hidden": vars(node.hidden),
    }
