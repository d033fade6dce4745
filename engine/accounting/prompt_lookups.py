"""How much of the prompts that came to an engine was cached.

Invariant: a request counts once, by its first lookup, however often it gives way and is looked up
again; the tree's own counters have every lookup. Thread rule: the engine loop's.
"""

from tasuki.engine.messages import HitBreakdown


class PromptLookups:
    """prompt_tokens: of all prompts. usable_tokens: of those tokens, that needed no computing."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.usable_tokens = 0

    def add(self, hit: HitBreakdown) -> None:
        """Count what a request's first lookup found."""
        self.prompt_tokens += hit.prompt_tokens
        self.usable_tokens += hit.usable_tokens
