"""The targets of measured points, used to mark report rows as met or missed.

Targets are for one H200 and the published shapes; elsewhere a row has none.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """A measured point: `batch` requests of `context` tokens each."""

    batch: int
    context: int

    @staticmethod
    def parse(text: str) -> "Point":
        """Parse a point, for example "16x8192". Raises ValueError."""
        batch, _, context = text.partition("x")
        if not (batch.isdecimal() and context.isdecimal() and int(batch) and int(context)):
            raise ValueError(f"point {text!r}: write BATCHxCONTEXT, as 16x8192")
        return Point(int(batch), int(context))


# Model and point to (the most seconds a step may take, the most floors it may take).
DECODE_TARGETS = {
    ("9b", Point(1, 50_000)): (5.0e-3, None),
    ("9b", Point(16, 8_192)): (6.4e-3, 1.25),
    ("9b", Point(64, 8_192)): (11.2e-3, 1.2),
    ("35b-a3b", Point(1, 50_000)): (None, 1.8),
}
DRAFT_TARGETS = {
    ("9b", Point(1, 8_192)): 1.8,
    ("9b", Point(1, 50_000)): 1.8,
    ("9b", Point(16, 8_192)): 1.8,
    ("9b", Point(64, 8_192)): 1.4,
    ("35b-a3b", Point(1, 8_192)): 1.15,
    ("35b-a3b", Point(64, 8_192)): 2.0,
}
"""Least ratio of tokens a second with drafts to tokens a second without, at the acceptance
ACCEPTED. From MOST_DRAFTED answers on the node chooses the number of drafts; with fewer it is
DRAFTS."""
DRAFTS, MOST_DRAFTED = 3, 64
MOST_SLOWER_BY_DRAFTS = 0.01
"""Largest accepted slowdown by drafts, as a share, if the node chooses the number of drafts."""
ACCEPTED = ".80/.75/.72"
RANK_DECODE_TARGETS = {
    ("9b", Point(1, 50_000)): 1.5,
    ("9b", Point(64, 8_192)): 1.6,
    ("27b", Point(1, 50_000)): 1.6,
    ("35b-a3b", Point(1, 50_000)): 1.2,
}
"""Least ratio of steps a second of two ranks to steps a second of one rank, in the same run."""
RANK_PREFILL_TARGETS = {("27b", 50_000): 1.7}
PREFILL_TARGETS = {("9b", 8_192): 0.216, ("9b", 50_000): 1.50}
# At 50K cached: 64 tokens answered and 800 new; then the same prompt again.
TURN_TARGETS = {"9b": (45e-3, 15e-3)}
# Against transformers with fla in the same run, with one request.
DECODE_PEER_RATIO = 12.0
GRAMMAR_RATIO = 1.05
"""Largest accepted ratio: a step with grammars on half of the answers over a step without
grammars."""
BUDGET_RATIO = 1.01
"""Largest accepted ratio: a step of answers with thinking budgets over a step without budgets."""
PREFILL_PEER_RATIO = 1.35
# Allowed cost of a draft layer's entries for a step and for a prompt, both without drafts.
MOST_ENTRIES_OF_A_STEP, MOST_ENTRIES_OF_A_PROMPT = 0.01, 0.015
# Allowed share of ticks of the step counter in a forward's time.
MOST_TICK_COST = 0.01
# Idle time between two decode graphs, at this batch.
IDLE_BATCH, IDLE_SECONDS = 64, 50e-6
