"""Sets tokens that a chat template renders otherwise than before apart from those never seen.

Pure. Invariant: usable + causes stay the prompt.
"""

from dataclasses import replace

from tasuki.engine.messages import HitBreakdown
from tasuki.engine.messages.evictions import TEMPLATE_CHANGED


def with_changed(hit: HitBreakdown, changed: tuple[int, int] | None) -> HitBreakdown:
    """changed: tokens [begin, end) of the prompt that the turn before had otherwise. Only what the
    tree takes for new can be of that cause, which is the prompt's end."""
    if changed is None:
        return hit
    begin, end = changed
    new = hit.causes.get("new", 0)
    tokens = min(end, hit.prompt_tokens) - max(begin, hit.prompt_tokens - new)
    if tokens <= 0:
        return hit
    in_pages = None if hit.in_pages is None else with_changed(hit.in_pages, changed)
    causes = {**hit.causes, "new": new - tokens, TEMPLATE_CHANGED: tokens}
    return replace(hit, causes=causes, in_pages=in_pages, template_changed_at=begin)
