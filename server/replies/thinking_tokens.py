"""How long an answer may think, as a request asks for it, and the tokens that end the thought.

Pure; any thread.
"""

from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tasuki.server.errors import InvalidField
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.thinking import BEHIND_THINKING, END_OF_THINK, THINK, Thinking

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
