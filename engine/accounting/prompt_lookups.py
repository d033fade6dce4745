"""How much of the prompts that came to an engine was cached.

Invariant: a request counts once, as it ends and by what its usage says, however often it gave way
and was looked up again, and wherever its prompt was computed; the tree's own counters have every
lookup. Thread rule: the engine loop's.
"""

from tasuki.engine.messages import HitBreakdown


class PromptLookups:
    """prompt_tokens: of all prompts. usable_tokens: of those tokens, that needed no computing."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.usable_tokens = 0

    def ended(self, hit: HitBreakdown | None) -> None:
        """Count a request's prompt, or a room's. hit: as reported; None: never looked up."""
        if hit is not None:
            self.prompt_tokens += hit.prompt_tokens
            self.usable_tokens += hit.usable_tokens
