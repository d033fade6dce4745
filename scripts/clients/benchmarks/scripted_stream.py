"""A streamed answer whose every chunk and moment is known: the truth that tools are held against.

Its figures are chosen so that each way to count gives another number. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass

_THOUGHT = (" she was", " not of")
_ANSWER = (
    *(" the house", " and letter", " of sister", " to dinner"),
    *(" in room", " she was", " not the", " and house"),
)
CHUNK_TOKENS = 2
"""Of every chunk of text, by the tokenizer of the embedded model."""
UNSEEN_TOKENS = 3
"""Written by the model and in no text: the tag behind the thought, its line, the end."""
THOUGHT_BEGINS_MS, ANSWER_BEGINS_MS, STEP_MS, TAIL_MS = 100, 300, 50, 100


@dataclass(frozen=True)
class Script:
    """thought_fields: names under which a chunk has its part of the thought; none: the answer has
    no thought. with_usage: a last chunk counts the tokens."""

    thought_fields: tuple[str, ...]
    with_usage: bool = True

    @property
    def thought(self) -> tuple[str, ...]:
        """The texts of the thought's chunks."""
        return _THOUGHT if self.thought_fields else ()

    @property
    def answer(self) -> tuple[str, ...]:
        """The texts of the answer's chunks."""
        return _ANSWER

    def chunks(self) -> Iterator[tuple[int, dict[str, object]]]:
        """Milliseconds after the request, and the fields of a chunk."""
        yield 0, _choice({"role": "assistant", "content": ""})
        for number, text in enumerate(self.thought):
            names = dict.fromkeys(self.thought_fields, text)
            yield THOUGHT_BEGINS_MS + number * STEP_MS, _choice(names)
        for number, text in enumerate(self.answer):
            yield ANSWER_BEGINS_MS + number * STEP_MS, _choice({"content": text})
        yield self.last_text_ms + TAIL_MS, _choice({}, "stop")
        if self.with_usage:
            yield self.end_ms, {"choices": [], "usage": self.usage()}

    @property
    def first_text_ms(self) -> int:
        """When the first chunk with text comes, of the thought where there is one."""
        return THOUGHT_BEGINS_MS if self.thought_fields else ANSWER_BEGINS_MS

    @property
    def last_text_ms(self) -> int:
        """When the last chunk with text comes."""
        return ANSWER_BEGINS_MS + (len(self.answer) - 1) * STEP_MS

    @property
    def end_ms(self) -> int:
        """When the stream ends."""
        return self.last_text_ms + TAIL_MS * (2 if self.with_usage else 1)

    @property
    def text_tokens(self) -> int:
        """Of thought and answer together."""
        return CHUNK_TOKENS * (len(self.thought) + len(self.answer))

    @property
    def written_tokens(self) -> int:
        """All that the model wrote, as usage has it."""
        return self.text_tokens + UNSEEN_TOKENS

    @property
    def gap_ms(self) -> float:
        """Between two tokens from the first text to the last."""
        return (self.last_text_ms - self.first_text_ms) / (self.text_tokens - 1)

    @property
    def chunk_gap_ms(self) -> float:
        """Between two chunks with text."""
        chunks = len(self.thought) + len(self.answer)
        return (self.last_text_ms - self.first_text_ms) / (chunks - 1)

    def usage(self) -> dict[str, object]:
        """As of a server that counts all that its model wrote."""
        thought = CHUNK_TOKENS * len(self.thought)
        return {
            "prompt_tokens": 64,
            "completion_tokens": self.written_tokens,
            "total_tokens": 64 + self.written_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": thought},
        }


SCRIPTS = {
    "no thought": Script(()),
    "reasoning_content": Script(("reasoning_content",)),
    "reasoning": Script(("reasoning",)),
    "both": Script(("reasoning_content", "reasoning")),
    "both, no usage": Script(("reasoning_content", "reasoning"), with_usage=False),
}
"""By a name that a table has."""


def _choice(delta: dict[str, str], reason: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
