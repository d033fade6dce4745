"""Which ends of messages a conversation may be resumed at, without rendering every part of it.

A message's end counts where the messages up to it, rendered alone, are a prefix of the whole text:
a template may render a turn anew once others follow. Of a short conversation every part is tried.
In a long one ends of one kind share it, so that one of each kind is tried, the shortest part. Pure;
knows neither templates nor tokens.
Invariant: the parts that are tried have no more messages together than the conversation has twice,
and some. What they do not reach has no end here, which costs a checkpoint and no token.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

# All parts of 31 messages.
_MORE_MESSAGES = 512


def message_ends(
    messages: Sequence[Mapping[str, Any]],
    text: str,
    places: Mapping[int, int],
    part: Callable[[int], str | None],
) -> set[int]:
    """Places in `text`. places: the end of so many messages, as far as it is known. part: so many
    messages rendered alone; None where the template refuses them."""
    short = len(messages) * (len(messages) + 1) // 2 <= _MORE_MESSAGES
    left = 2 * len(messages) + _MORE_MESSAGES
    later_question = _later_question(messages)
    holds: dict[Hashable, bool] = {}
    ends = set()
    for count in _in_order(len(messages)):
        known = count in places and not short
        kind = _kind(messages, count, later_question[count - 1]) if known else count
        if kind in holds:
            if holds[kind]:
                ends.add(places[count])
            continue
        if count > left:
            continue
        left -= count
        prefix = part(count)
        holds[kind] = prefix is not None and text.startswith(prefix)
        if prefix is not None and holds[kind]:
            ends.add(len(prefix))
    return ends


def _in_order(messages: int) -> list[int]:
    """The whole first, which is where the next turn begins; then from the shortest part on."""
    return [messages, *range(1, messages)]


def _kind(messages: Sequence[Mapping[str, Any]], count: int, later_question: bool) -> Hashable:
    """What templates look at when they render a turn anew."""
    followed_by = messages[count]["role"] if count < len(messages) else None
    return (_shape(messages[count - 1]), followed_by, later_question)


def _shape(message: Mapping[str, Any]) -> Hashable:
    content = message["content"]
    return (
        message["role"],
        bool(message.get("tool_calls")),
        not content,
        "</think>" in content,
        content.startswith("<tool_response>"),
    )


def _later_question(messages: Sequence[Mapping[str, Any]]) -> list[bool]:
    """For each message, whether a user speaks after it."""
    found = []
    later = False
    for message in reversed(messages):
        found.append(later)
        later = later or message["role"] == "user"
    return found[::-1]
