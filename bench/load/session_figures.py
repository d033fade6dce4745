"""Figures of growing sessions: tokens per second of a GPU and of a user, and hit rates. Pure."""

from collections.abc import Sequence

from tasuki.bench.load.client.answer import Answer

from .figures import Figures, NodeWindow, Window

_SHARES = (50, 90)


def session_figures(
    answers: Sequence[Answer], window: Window, node: NodeWindow, gpus: int
) -> Figures:
    """Return the figures of sessions in the window. An answer counts if it was sent and received
    whole in the window. Tokens per GPU count all tokens received in it. node: samples of the
    answering node. gpus: number of GPUs of all nodes.

    A user's tokens per second are the inverse of a quantile of the answers' seconds per token. Nine
    answers of ten reach p90. The seconds include the wait for the first token; "decoding" leaves it
    out. Hit rates are shares of prompt tokens: reached, by the node's usage; ideal, computed in
    earlier turns of the session."""
    timed = [
        answer
        for answer in answers
        if answer.whole and window.holds(answer.started) and window.holds(answer.ended)
    ]
    tokens = sum(window.holds(at) for answer in answers for at in answer.times)
    prompts = sum(answer.prompt_tokens for answer in timed)
    return {
        "tokens_per_second_per_gpu": round(tokens / window.seconds / gpus, 1),
        "tokens_per_second_per_user": _rates(
            [(answer.ended - answer.started) / len(answer.tokens) for answer in timed]
        ),
        "decoding_tokens_per_second_per_user": _rates(
            [
                (answer.times[-1] - answer.times[0]) / (len(answer.times) - 1)
                for answer in timed
                if len(answer.times) > 1
            ]
        ),
        "hit_rate": {
            "reached": _share(sum(answer.cached_tokens for answer in timed), prompts),
            "ideal": _share(sum(answer.known_tokens for answer in timed), prompts),
        },
        "mean_tokens": {
            "input": _mean(prompts, len(timed)),
            "output": _mean(sum(len(answer.tokens) for answer in timed), len(timed)),
            "answers": len(timed),
        },
        **_drafts(node),
    }


def _drafts(node: NodeWindow) -> Figures:
    """Return the drafts of the window; nothing without any. tokens_per_row: mean tokens of an
    answer from a step with drafts."""
    drafted = node.grown("drafted_tokens_total")
    if not drafted:
        return {}
    accepted = node.grown("accepted_draft_tokens_total")
    rows = node.grown("drafted_tokens_total", place="1")
    return {
        "drafts": {
            "drafted": int(drafted),
            "accepted": int(accepted),
            "tokens_per_row": round(1 + accepted / rows, 3),
        }
    }


def _rates(seconds: Sequence[float]) -> dict[str, float | None]:
    """Return the inverse of quantiles. seconds: of a token, answer by answer."""
    ordered = sorted(seconds)
    rates: dict[str, float | None] = {}
    for share in _SHARES:
        place = min(len(ordered) - 1, share * len(ordered) // 100)
        rates[f"p{share}"] = round(1 / ordered[place], 2) if ordered and ordered[place] else None
    return rates


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _mean(total: int, count: int) -> float | None:
    return round(total / count, 1) if count else None
