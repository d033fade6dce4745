"""Whether an answer begins with reasoning, as the end of its prompt shows. Pure; any thread."""

from enum import Enum

THINK, END_OF_THINK = "<think>", "</think>"
BEHIND_THINKING = "\n\n"
"""Between a thought and what follows it, as every template of these models writes it."""


class Thinking(Enum):
    """OPENED: the prompt ends inside the tags, and the answer goes on there. ALLOWED: the template
    knows the tags, and the model may open them itself. NEVER: the whole answer is content."""

    OPENED = "opened"
    ALLOWED = "allowed"
    NEVER = "never"


def thinking_behind(prompt: str, source: str) -> Thinking:
    """prompt: as rendered, with the answer's opening. source: the template's."""
    if END_OF_THINK not in source and THINK not in source:
        return Thinking.NEVER
    end = prompt[-64:].rstrip()
    if end.endswith(THINK):
        return Thinking.OPENED
    return Thinking.NEVER if end.endswith(END_OF_THINK) else Thinking.ALLOWED
