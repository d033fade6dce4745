"""The lengths of an agent's session. Its prompts grow turn by turn, and a given share of all prompt
tokens was computed in earlier turns. Pure."""

from dataclasses import dataclass

_FULL = 1.5
"""The preferred number of turns, times the share of new prompt tokens. The first prompt then has
half of the mean length."""
_MOST_FULL = 2.0
"""The largest number of turns, likewise. With more turns a first prompt would have no tokens."""


@dataclass(frozen=True)
class SessionShape:
    """Lengths in tokens. turns: number of a session's turns. first: length of its first prompt.
    fresh: new tokens of each later prompt, after the earlier prompt and its answer. answer: mean
    length of an answer."""

    turns: int
    first: int
    fresh: int
    answer: int

    @classmethod
    def of(cls, prompt: int, answer: int, reuse: float) -> "SessionShape":
        """Return the shape with these means over a session. prompt: length of a prompt. answer:
        length of an answer. reuse: share of the prompt tokens computed in earlier turns. Raises
        ValueError if no number of turns has them."""
        if not 0 < reuse < 1:
            raise ValueError(f"reuse must be between 0 and 1, not {reuse:g}")
        new = 1 - reuse
        shapes = [
            cls._with_turns(turns, prompt, answer, new)
            for turns in range(2, int(_MOST_FULL / new) + 2)
        ]
        found = [shape for shape in shapes if shape.first > 0 and shape.fresh > 0]
        if not found:
            raise ValueError(
                f"no session has prompts of {prompt} tokens, answers of {answer} and a reuse of "
                f"{reuse:g}: give longer prompts, shorter answers or another reuse"
            )
        return min(found, key=lambda shape: abs(shape.turns - _FULL / new))

    @classmethod
    def _with_turns(cls, turns: int, prompt: int, answer: int, new: float) -> "SessionShape":
        # Prompts grow by `grown` a turn, and their mean is `prompt`. New tokens are those of the
        # first prompt and the fresh ones.
        grown = 2 * ((new * turns - 1) * prompt / (turns - 1) + answer)
        first = prompt - (turns - 1) * grown / 2
        return cls(turns, round(first), round(grown) - answer, answer)

    def prompt(self, turn: int) -> int:
        """Return the length of a turn's prompt, after answers of mean length. turn: from 0 on."""
        return self.first + turn * (self.fresh + self.answer)

    @property
    def longest(self) -> int:
        """Return the length of a session's last prompt and its answer."""
        return self.prompt(self.turns - 1) + self.answer
