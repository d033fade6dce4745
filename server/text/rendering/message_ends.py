"""The ends of messages at which a conversation may be resumed, without rendering every part of it.

A message's end counts if the messages up to it, rendered alone, are a prefix of the whole text: a
template may render a turn differently once others follow. Of a short conversation every part is
rendered. In a long one all ends of one kind take the result of the shortest part of that kind.
Pure. Invariants: the rendered parts have together at most twice the conversation's messages and
_MORE_MESSAGES more, those that the caller remembers included, so that no result depends on what is
remembered. Ends that no part covers are left out, which costs a checkpoint and no token.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from .template_marks import MessagePlaces

# All parts of 31 messages.
_MORE_MESSAGES = 512


def message_ends(
    messages: Sequence[Mapping[str, Any]],
    places: MessagePlaces,
    part: Callable[[int], int | None],
) -> set[int]:
    """Positions in the text of all messages, whose places are given. part: the length of the text
    of so many messages alone, where the whole text begins with it; None where it does not, or where
    the template refuses them."""
    short = len(messages) * (len(messages) + 1) // 2 <= _MORE_MESSAGES
    left = 2 * len(messages) + _MORE_MESSAGES
    later_question = _later_question(messages)
    holds: dict[Hashable, bool] = {}
    ends = set()
    # First the whole, whose end is where the next turn begins.
    for count in (len(messages), *range(1, len(messages))):
        known = count in places.ends and not short
        kind = _kind(messages, count, later_question[count - 1]) if known else count
        if kind in holds:
            if holds[kind]:
                ends.add(places.ends[count])
            continue
        if count == len(messages) and places.closed is not None:
            length: int | None = places.closed
        elif count <= left:
            left -= count
            length = part(count)
        else:
            continue
        holds[kind] = length is not None
        if length is not None:
            ends.add(length)
    return ends


def _kind(messages: Sequence[Mapping[str, Any]], count: int, later_question: bool) -> Hashable:
    """The properties by which templates render a turn differently once others follow."""
    followed_by = messages[count]["role"] if count < len(messages) else None
    return (_shape(messages[count - 1]), followed_by, later_question)


def _shape(message: Mapping[str, Any]) -> Hashable:
    content = message["content"]
    return (
        message["role"],
        bool(message.get("tool_calls")),
        bool(message.get("reasoning_content")),
        not content,
        "</think>" in content,
        content.startswith("<tool_response>"),
    )


def _later_question(messages: Sequence[Mapping[str, Any]]) -> list[bool]:
    """For each message, whether a user's message follows later."""
    found = []
    later = False
    for message in reversed(messages):
        found.append(later)
        later = later or message["role"] == "user"
    return found[::-1]
