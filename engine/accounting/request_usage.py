"""What the client of a request gets to read of it, once it is over. Pure."""

import time
from typing import Any

from tasuki.engine import messages as m
from tasuki.engine.request import Request
from tasuki.engine.speculation.drafter import DraftSource

from .changed_prompts import with_changed


def usage_of(request: Request) -> m.Usage:
    now = time.monotonic()
    first = request.first_token_at
    return m.Usage(
        prompt_tokens=len(request.prompt),
        completion_tokens=len(request.output),
        hit=None if request.hit is None else with_changed(request.hit, request.changed),
        transfer=request.transfer,
        prefilled_on=request.prefilled_on,
        local_fallback=request.handover_lost,
        time_to_first_token=(now if first is None else first) - request.created,
        seconds=now - request.created,
        pulled=request.pulled,
        route=request.route,
        prefill_choice=request.prefill_choice,
        targets=None if request.targets == m.NO_TARGETS else request.targets,
        **_drafted(request),
    )


def _drafted(request: Request) -> dict[str, Any]:
    """Of its usage."""
    if request.drafting is None:
        return {}
    counts = request.drafting.counts
    drafts = tuple(
        m.DraftUse(source.value, tuple(count.drafted), tuple(count.accepted))
        for source, count in counts.items()
        if count.drafted
    )
    found: dict[str, Any] = {
        "drafts": drafts,
        "drafted_tokens": sum(sum(use.drafted) for use in drafts),
        "accepted_tokens": sum(sum(use.accepted) for use in drafts),
    }
    predicted = counts.get(DraftSource.PREDICTION)
    if predicted is not None:
        accepted = sum(predicted.accepted)
        found["accepted_prediction_tokens"] = accepted
        found["rejected_prediction_tokens"] = sum(predicted.drafted) - accepted
    return found
