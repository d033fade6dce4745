"""Options of a request that a tokenizer or template turns into tokens or words. Pure; any thread.

read_bad_words(): Texts that an answer may not hold, as sequences of token ids.

placed_budget(): How long an answer may think, as a request asks for it, and the tokens that end the
thought.

effort_of_template(): How hard a model shall think, in a word of its own template's. APIs have
scales of their own, and their clients send a word of them unasked; templates refuse words that they
do not know.
"""

from collections.abc import Sequence

from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tasuki.server.errors import InvalidField

from .text_answer import BEHIND_THINKING, END_OF_THINK, THINK, Thinking
from .text_codec import TextCodec

MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 256


def read_bad_words(
    field: str, words: Sequence[object], codec: TextCodec
) -> tuple[tuple[int, ...], ...]:
    """Token ids of each text at the beginning of a text, and, where that is another token for the
    same number of tokens, behind a space, as vLLM has it. Raises InvalidField, and InvalidRequest
    where the checkpoint has no tokenizer."""
    if not words:
        return ()
    if len(words) > MAX_BAD_WORDS:
        raise InvalidField(field, f"may hold at most {MAX_BAD_WORDS} strings")
    tokenizer = codec.require_tokenizer()
    sequences = []
    for word in words:
        text = word.lstrip() if isinstance(word, str) else ""
        if not 0 < len(text) <= MAX_BAD_WORD_CHARACTERS:
            raise InvalidField(
                field, f"must hold strings of 1 to {MAX_BAD_WORD_CHARACTERS} characters"
            )
        first, behind = tokenizer.encode(text), tokenizer.encode(f" {text}")
        sequences.append(tuple(first))
        if behind[0] != first[0] and len(behind) == len(first):
            sequences.append(tuple(behind))
    return tuple(sequences)


_BEFORE_END = "\n"
"""Between a thought and its closing tag, where no template says it."""


def placed_budget(
    field: str, most: int | None, thinking: Thinking, codec: TextCodec
) -> ThinkingBudget | None:
    """Return the budget of an answer that may think; None where it may not, or `most` is None.

    field: of the request, as errors name it. most: tokens. Raises InvalidField."""
    if most is None or thinking is Thinking.NEVER:
        return None
    tokenizer = codec.tokenizer
    closing, opening = (
        None if tokenizer is None else tokenizer.added_tokens.get(tag)
        for tag in (END_OF_THINK, THINK)
    )
    if tokenizer is None or closing is None or opening is None:
        raise InvalidField(
            field,
            f"needs a tokenizer in which {THINK} and {END_OF_THINK} are tokens: leave it out",
        )
    before = _BEFORE_END if codec.template is None else codec.template.thought_end
    tokens = (*tokenizer.encode(before), closing, *tokenizer.encode(BEHIND_THINKING))
    opened = None if thinking is Thinking.OPENED else opening
    try:
        return ThinkingBudget(most, tokens, closing, opened)
    except ValueError as error:
        raise InvalidField(field, str(error).removeprefix("thinking ")) from error


EFFORT = "reasoning_effort"
"""The template's variable."""

_NEAREST = {
    "minimal": ("low",),
    "high": ("xhigh",),
    "xhigh": ("high",),
    "max": ("xhigh", "high"),
}


# At most so many tokens of thought.
_SMALL_BUDGETS = ((1024, "low"), (2048, "medium"))


def effort_of_budget(field: str, tokens: int | None) -> str | None:
    """Return the word for a small budget of tokens: a model that knows it ends its thought sooner
    by itself. None: no word, as for a larger budget or none. Raises InvalidField."""
    if tokens is None:
        return None
    if tokens < 1:
        raise InvalidField(field, f"must be at least 1, not {tokens}")
    return next((word for most, word in _SMALL_BUDGETS if tokens <= most), None)


def effort_of_template(codec: TextCodec, field: str, effort: str) -> str:
    """The word itself, or the nearest that the template takes: a template that does not ask for an
    effort takes every word. Raises InvalidField."""
    template = codec.require_template()
    for word in (effort, *_NEAREST.get(effort, ())):
        if template.takes({EFFORT: word}):
            return word
    raise InvalidField(field, f"{effort!r:.40} is none that this model's chat template takes")
