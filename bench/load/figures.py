"""The figures of a serving report, computed from clients' answers and samples of nodes. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from tasuki.bench.load.client.answer import Answer

from .cpu_by_role import use_between
from .node_process import NodeSample

_SHARES = (50, 95, 99)
_LEAST_SHARE = 0.9
_MOST_GAPS = 5.0
_FLAT_SHARE = 0.05

Figures = dict[str, Any]


@dataclass(frozen=True)
class Window:
    """The measured interval. begin, end: seconds on the monotonic clock."""

    begin: float
    end: float

    def holds(self, at: float) -> bool:
        return self.begin <= at < self.end

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class NodeWindow:
    """One node's samples at the measured window's begin and end. pid: id of the started process."""

    role: str
    pid: int
    before: NodeSample
    after: NodeSample

    def grown(self, name: str, **labels: str) -> float:
        return self.after.counters.grown(self.before.counters, name, **labels)

    def quantile_ms(self, name: str, share: float) -> float | None:
        found = self.after.counters.quantile_since(self.before.counters, name, share)
        return None if found is None else round(found * 1e3, 3)


def answer_figures(answers: Sequence[Answer], window: Window) -> Figures:
    """Return the figures of answers within the window. Tokens and gaps count if they arrived in the
    window. First tokens count if their request was sent in it. A gap is the time between two
    arrivals of one stream's tokens, and 0 for tokens arriving together. Requests cut at the
    window's end count as neither whole nor failed."""
    tokens = sum(window.holds(at) for answer in answers for at in answer.times)
    ended = [answer for answer in answers if not _was_cut(answer, window)]
    failed = [answer for answer in ended if not answer.whole]
    firsts = [
        answer.times[0] - answer.started
        for answer in answers
        if answer.times and window.holds(answer.started)
    ]
    return {
        "tokens": tokens,
        "tokens_per_second": round(tokens / window.seconds, 1),
        "ttft_ms": _quantiles_ms(firsts),
        "gap_ms": _quantiles_ms([gap for answer in answers for gap in _gaps(answer, window)]),
        "requests": len(answers),
        "whole": sum(answer.whole for answer in ended),
        "failed": len(failed),
        "unanswered": sum(answer.unanswered for answer in failed),
        "wrong_tokens": sum(answer.wrong for answer in answers),
        "why": sorted({answer.error or "its tokens" for answer in failed})[:3],
        "cached_tokens": sum(answer.cached_tokens for answer in answers),
    }


def node_figures(node: NodeWindow, tokens: int) -> Figures:
    """Return the CPU time of one node by role, for each token received by clients in the window.
    tokens: their number."""
    use = use_between(node.pid, node.before.cpu, node.after.cpu)
    steps = node.grown("engine_step_seconds_count")
    idles = node.grown("engine_idle_seconds_count")
    return {
        "role": node.role,
        "engine_us_per_token": _per(1e6 * use.engine, tokens),
        "front_us_per_token": _per(1e6 * use.front, tokens),
        "loop_ms_per_step": _per(1e3 * use.engine_loop, steps),
        "steps": int(steps),
        "step_ms": _per(1e3 * node.grown("engine_step_seconds_sum"), steps),
        "idle_us_between_steps": _per(1e6 * node.grown("engine_idle_seconds_sum"), idles),
        "processes": len(node.after.cpu.processes),
        "cpu_seconds": {
            name: round(seconds, 3)
            for name, seconds in sorted(use.threads.items(), key=lambda item: -item[1])
            if seconds >= 0.005
        },
        "memory_mib": [round(item.cpu.memory / 2**20) for item in (node.before, node.after)],
    }


def run_figures(answers: Sequence[Answer], window: Window, node: NodeWindow) -> Figures:
    """Return all figures of a run. node: the node asked by the clients."""
    answered = answer_figures(answers, window)
    measured = node_figures(node, answered["tokens"])
    rows = {"tokens_per_step": _per(answered["tokens"], measured["steps"])}
    return measured | rows | {"seconds": round(window.seconds, 2)} | answered


def handover_figures(prefill: NodeWindow, decode: NodeWindow) -> Figures:
    """Return the figures of transfers in the window, from a prefill and a decode node. lost: lost
    transfers; a request may lose several. fallen_back: requests with a prompt computed on the
    decode node after a loss."""
    return {
        "handovers": {
            "done": int(decode.grown("remote_prefills_total")),
            "lost": int(decode.grown("handovers_lost_total")),
            "fallen_back": int(decode.grown("local_fallbacks_total")),
            "pulls": int(prefill.grown("pulls_total", outcome="committed")),
            "pulls_lost": int(prefill.grown("pulls_total", outcome="lost")),
        },
        "exposed_ms": {
            f"p{share}": decode.quantile_ms("handover_exposed_seconds", share / 100)
            for share in _SHARES
        },
    }


def endless_figures(answers: Sequence[Answer], window: Window, node: NodeWindow) -> Figures:
    """Return the verdict on endless streams: each had its share of tokens, none paused too long,
    none ended, and the node's memory did not grow."""
    counts = [sum(window.holds(at) for at in answer.times) for answer in answers]
    gaps = [gap for answer in answers for gap in _gaps(answer, window) if gap > 0]
    share = min(counts, default=0) / max(1.0, median(counts) if counts else 0.0)
    usual = median(gaps) if gaps else 0.0
    longest = max((_longest_silence(answer, window) for answer in answers), default=0.0)
    before, after = (item.cpu.memory for item in (node.before, node.after))
    memory = (after - before) / before
    verdicts = {
        f"min / median tokens {share:.2f} >= {_LEAST_SHARE}": share >= _LEAST_SHARE,
        f"longest gap {1e3 * longest:.0f} ms <= {_MOST_GAPS:g} x median {1e3 * usual:.0f} ms": (
            longest <= _MOST_GAPS * usual
        ),
        f"memory grew by {memory:.1%} <= {_FLAT_SHARE:.0%}": memory <= _FLAT_SHARE,
        "all streams went on": not any(answer.ended < window.end for answer in answers),
    }
    return {
        "min_share": round(share, 4),
        "longest_gap_ms": round(1e3 * longest, 1),
        "median_gap_ms": round(1e3 * usual, 2),
        "memory_growth": round(memory, 4),
        "verdicts": verdicts,
        "passed": all(verdicts.values()),
    }


def _was_cut(answer: Answer, window: Window) -> bool:
    """Return True if the window's end cut the answer. An answer also counts as cut if all tokens
    came and only the stream's end was missing."""
    wrong = answer.unanswered or answer.wrong
    return answer.ended >= window.end and not answer.whole and not wrong


def _gaps(answer: Answer, window: Window) -> list[float]:
    inside = [at for at in answer.times if window.holds(at)]
    return [after - before for before, after in pairwise(inside)]


def _longest_silence(answer: Answer, window: Window) -> float:
    """Return the longest gap of an answer in the window, including the time before its first token
    and after its last."""
    inside = [window.begin, *(at for at in answer.times if window.holds(at)), window.end]
    return max(after - before for before, after in pairwise(inside))


def _quantiles_ms(seconds: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(seconds)
    return {
        f"p{share}": (
            round(1e3 * ordered[min(len(ordered) - 1, share * len(ordered) // 100)], 3)
            if ordered
            else None
        )
        for share in _SHARES
    }


def _per(amount: float, count: float) -> float | None:
    return round(amount / count, 3) if count else None
