"""The rows of the table: which trace under which budget, and what others reach there."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """FLOPs saved for 35B-A3B. `sglang_like`, `marconi_quoted`: peers' policies by an independent
    simulator (fixed pools 0.9, every 8192 tokens; alpha 0.5 in one budget)."""

    trace: str
    gib: int
    sglang_like: float
    marconi_quoted: float
    target: float
    stretch: float


CELLS = (
    Cell("claude_code_dev", 32, 0.102, 0.271, 0.38, 0.45),
    Cell("claude_code_dev", 128, 0.741, 0.869, 0.89, 0.91),
    Cell("mooncake_conversation_dev", 64, 0.058, 0.103, 0.13, 0.16),
    Cell("mooncake_conversation_dev", 256, 0.229, 0.224, 0.25, 0.28),
    Cell("mooncake_synthetic_dev", 64, 0.061, 0.101, 0.11, 0.20),
)
POLICIES = ("marconi", "lru", "value", "auto")
DRAFTING_POLICY = "auto"
"""Replayed with a draft layer too."""
MODEL = "35b-a3b"
