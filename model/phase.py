"""What the rows of a forward are for, which decides their precision where weights are quantised."""

from enum import Enum


class Phase(Enum):
    """Precision follows the phase and never the number of rows: else a guess that is verified, or a
    prompt that was partly known, would give other tokens than the same tokens one by one.

    STEP     one token of an answer after the other, or several that are verified at once:
             activations as they are.
    PROMPT   tokens of prompts: activations may be quantised as weights are.
    """

    STEP = "step"
    PROMPT = "prompt"
