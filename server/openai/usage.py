"""Usage in OpenAI's shape. Pure functions.

`cached_tokens` counts usable tokens: those that were not computed again. Requests with the header
`x-tasuki-hit: 1` get the whole hit breakdown as `prompt_tokens_details.hybrid`.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from aiohttp import web

from tasuki.engine import messages as m

HIT_HEADER = "x-tasuki-hit"


def wants_hit(request: web.Request) -> bool:
    return request.headers.get(HIT_HEADER) == "1"


def usage(
    prompts: Sequence[m.Usage],
    completion: int,
    reasoning_tokens: int | None,
    answers: Sequence[m.Usage],
    *,
    with_hit: bool,
) -> dict[str, Any]:
    """Of a reply's prompts together, and of so many tokens of all its choices. reasoning_tokens:
    None where answers of that kind have none. answers: of each choice. with_hit: explain a prompt's
    hit where it is the only one."""
    hits = [prompt.hit for prompt in prompts if prompt.hit is not None]
    details: dict[str, Any] = {"cached_tokens": sum(hit.usable_tokens for hit in hits)}
    if with_hit and len(prompts) == len(hits) == 1:
        details["hybrid"] = hybrid_hit(hits[0])
    prompt = sum(prompt.prompt_tokens for prompt in prompts)
    shown: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": details,
    }
    completion_details: dict[str, Any] = _predicted(answers) | _drafted(answers)
    if reasoning_tokens is not None:
        completion_details["reasoning_tokens"] = reasoning_tokens
    if completion_details:
        shown["completion_tokens_details"] = completion_details
    return shown


def usage_so_far(prompt: int, completion: int) -> dict[str, int]:
    """Of an answer that goes on, in tokens."""
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


def _predicted(answers: Sequence[m.Usage]) -> dict[str, int]:
    """How much of the request's prediction held; nothing where it had none."""
    given = [answer for answer in answers if answer.accepted_prediction_tokens is not None]
    if not given:
        return {}
    return {
        field: sum(getattr(answer, field) for answer in given)
        for field in ("accepted_prediction_tokens", "rejected_prediction_tokens")
    }


def _drafted(answers: Sequence[m.Usage]) -> dict[str, Any]:
    """Tokens that were drafted and those that held, by drafter and by their place in a forward's
    drafts; nothing where none were."""
    found: dict[str, dict[str, list[int]]] = {}
    for use in (use for answer in answers for use in answer.drafts):
        of_source = found.setdefault(use.source, {"drafted": [], "accepted": []})
        for name, counts in (("drafted", use.drafted), ("accepted", use.accepted)):
            sums = zip_longest(of_source[name], counts, fillvalue=0)
            of_source[name] = [sum(pair) for pair in sums]
    return {"drafts": found} if found else {}


def hybrid_hit(hit: m.HitBreakdown) -> dict[str, Any]:
    """lost: tokens that might have been cached; reason: why most of them were not. loaded: of the
    usable ones, by tier, those that came from below the arena; left out where none did."""
    causes = {cause: count for cause, count in hit.causes.items() if count}
    changed_at = hit.template_changed_at
    lost = {cause: count for cause, count in causes.items() if cause != "new"}
    return {
        "kv_match": hit.kv_tokens,
        "usable": hit.usable_tokens,
        "lost": sum(lost.values()),
        "reason": max(lost, key=lost.__getitem__) if lost else None,
        "causes": causes,
        "checkpoint_source": hit.checkpoint_source,
        **({} if changed_at is None else {"template_changed_at": changed_at}),
        **({"loaded": hit.loaded} if hit.loaded else {}),
    }
