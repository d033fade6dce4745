"""What a response's turn becomes, as it is answered: its tokens, and the message of its answer.

One answer, one thread. Invariant: all of it is bytes and arrays, whose memory is some bytes for
each token.
"""

from array import array
from collections.abc import Sequence

import numpy as np

from tasuki.engine.messages import Tokens
from tasuki.server.replies.growing_text import GrowingText
from tasuki.server.text.answer_parts import (
    AnswerItem,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Reasoning,
)
from tasuki.server.text.chat_message import ChatMessage

from .stored_messages import joined_messages, written_answer, written_messages
from .stored_responses import NO_CONTEXT, StoredTurn


class TurnRecord:
    def __init__(self, prompt: Tokens, messages: Sequence[ChatMessage], context: bytes) -> None:
        """messages: the conversation before the answer. context: as in StoredTurn."""
        self._prompt = prompt
        self._before = written_messages(messages)
        self._context = context
        self._tokens = array("i")
        self._reasoning = GrowingText()
        self._content = GrowingText()
        self._names: list[str] = []
        self._arguments: list[GrowingText] = []

    @property
    def kept_bytes(self) -> int:
        """Memory before the answer, without the prompt."""
        return len(self._before)

    def add_token(self, token: int) -> None:
        self._tokens.append(token)

    def add(self, item: AnswerItem) -> None:
        """Take the answer's next part."""
        match item:
            case Reasoning(text):
                self._reasoning.add(text)
            case Content(text):
                self._content.add(text)
            case CallBegin(_, _, name):
                self._names.append(name)
                self._arguments.append(GrowingText())
            case CallArguments(number, text):
                self._arguments[number].add(text)
            case CallEnd():
                pass

    def turn(self) -> StoredTurn:
        """Return the whole turn. REQUIRES: the answer has ended."""
        calls = [*zip(self._names, map(str, self._arguments), strict=True)]
        # An answer without text is a message too.
        answer = written_answer(str(self._content), str(self._reasoning), calls)
        tokens = np.concatenate([self._prompt, np.array(self._tokens, dtype=np.int32)])
        conversation = joined_messages(self._before, answer)
        return StoredTurn(tokens, conversation, self._context)

    def unanswered(self) -> StoredTurn:
        """Return the turn of a response that has no answer: what goes on from it is rendered
        anew."""
        return StoredTurn(self._prompt, self._before, NO_CONTEXT)
