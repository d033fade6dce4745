"""Resume points of a conversation: the ends of messages, and the exact end of a turn.

message_ends(): A message's end counts if the messages up to it, rendered alone, are a prefix of the
whole text: a template may render a turn differently once others follow. Of a short conversation
every part is rendered. In a long one all ends of one kind take the result of the shortest part of
that kind. Pure. Invariants: the rendered parts have together at most twice the conversation's
messages and _MORE_MESSAGES more, those that the caller remembers included, so that no result
depends on what is remembered. Ends that no part covers are left out, which costs a checkpoint and
no token.

TurnEnds: Whether the next turn of a conversation may lose this turn's exact end, and go on from the
last message's end. A turn loses its end in three ways: the client sends an answer back without its
thought, the template drops the thought, or the template renders an old answer otherwise than a new
one begins. Short conversations are rendered to see it. Of the client's own messages only the shapes
of the last ones are read. Owns the results of one template. Any thread. Invariant: a remembered
result is that of a rendering.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from tasuki.server.text.chat_message import ChatMessage, ChatTemplateError
from tasuki.server.text.text_answer import END_OF_THINK, THINK, Thinking
from tasuki.utils.bounded_cache import BoundedCache

from .compiled_template import MARK_BEGIN, MARK_END, CompiledTemplate, MessagePlaces

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


_REMEMBERED_BYTES = 1 << 18
"""For some hundreds of clients' variables."""

# Stand for texts that do not matter.
_ANSWER = f"{MARK_BEGIN}answer{MARK_END}"
_THOUGHT = f"{MARK_BEGIN}thought{MARK_END}"
_QUESTION = {"role": "user", "content": "?"}
_RESULT = {"role": "tool", "content": "?"}
_CALL = {"type": "function", "function": {"name": "f", "arguments": {}}}

_Shown = Mapping[str, Any]


class TurnEnds:
    def __init__(self, template: CompiledTemplate) -> None:
        self._template = template
        self._remembered: BoundedCache[bytes, bool] = BoundedCache(_REMEMBERED_BYTES)

    def may_be_lost(
        self,
        messages: Sequence[ChatMessage],
        thinking: Thinking,
        variables: Mapping[str, Any],
    ) -> bool:
        """Whether a turn that goes on behind these messages, and their answer, may begin with their
        text and not with the answer's. thinking: of that answer. variables: as the template is
        given them."""
        last = messages[-1].role
        if last not in ("user", "tool"):
            return False
        returned = _returns_thoughts(messages)
        asked = repr((last, thinking, returned, variables)).encode(errors="surrogatepass")
        name = hashlib.blake2b(asked, digest_size=16).digest()
        found = self._remembered.get(name)
        if found is None:
            ways = (False, True) if returned is None else (returned,)
            found = any(self._loses(last, thinking, way, variables) for way in ways)
            self._remembered.put(name, found, len(name))
        return found

    def _loses(
        self, last: str, thinking: Thinking, returned: bool, variables: Mapping[str, Any]
    ) -> bool:
        """returned: whether the client returns thoughts."""
        thinks = returned and thinking is not Thinking.NEVER
        begun: list[_Shown] = [_QUESTION]
        if last == "tool":
            begun += [_answer(thinks, calls=True), _RESULT]
        try:
            closed, opened = (
                self._template.text(begun, flag, variables=variables) for flag in (False, True)
            )
        except ChatTemplateError:
            return False
        for text in self._next_turns(begun, thinks, variables):
            if not text.startswith(closed):
                # Where this turn began is lost too.
                continue
            is_whole = thinks or thinking is Thinking.NEVER
            if not (is_whole and text.startswith(opened) and _goes_on(text[len(opened) :], thinks)):
                return True
        return False

    def _next_turns(
        self, begun: Sequence[_Shown], thinks: bool, variables: Mapping[str, Any]
    ) -> Iterator[str]:
        """Texts of conversations that go on behind an answer, as the template takes them."""
        for behind in (_QUESTION, _RESULT):
            answer = _answer(thinks, calls=behind is _RESULT)
            try:
                yield self._template.text([*begun, answer, behind], False, variables=variables)
            except ChatTemplateError:
                continue


def _goes_on(text: str, thinks: bool) -> bool:
    """Whether it begins as the model's own answer did."""
    if thinks:
        return text.removeprefix(THINK).lstrip().startswith(_THOUGHT)
    return text.startswith(_ANSWER)


def _answer(thinks: bool, calls: bool) -> _Shown:
    called = {"tool_calls": [_CALL]} if calls else {}
    thought = {"reasoning_content": _THOUGHT} if thinks else {}
    return {"role": "assistant", "content": _ANSWER, **thought, **called}


def _returns_thoughts(messages: Sequence[ChatMessage]) -> bool | None:
    """As the latest answer shows; None without one."""
    for message in reversed(messages):
        if message.role == "assistant":
            return bool(message.reasoning) or END_OF_THINK in message.content
    return None
