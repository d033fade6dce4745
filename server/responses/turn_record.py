"""What a response's turn becomes, as it is answered: its tokens, and the message of its answer.

One answer, one thread.
"""

from collections.abc import Sequence

import numpy as np

from tasuki.engine.messages import Tokens
from tasuki.server.replies.conversation_builder import ConversationBuilder
from tasuki.server.text.answer_parts import (
    AnswerItem,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Reasoning,
)
from tasuki.server.text.call_arguments import read_arguments
from tasuki.server.text.chat_message import ChatMessage, ToolCall

from .stored_responses import StoredTurn


class TurnRecord:
    def __init__(self, prompt: Tokens, messages: Sequence[ChatMessage], context: bytes) -> None:
        """messages: the conversation before the answer. context: as in StoredTurn."""
        self._prompt = prompt
        self._messages = messages
        self._context = context
        self._tokens: list[int] = []
        self._answer = ConversationBuilder()
        self._names: list[str] = []
        self._arguments: list[list[str]] = []

    def add_token(self, token: int) -> None:
        self._tokens.append(token)

    def add(self, item: AnswerItem) -> None:
        match item:
            case Reasoning(text):
                self._answer.reasoning(text)
            case Content(text):
                self._answer.content(text)
            case CallBegin(_, _, name):
                self._names.append(name)
                self._arguments.append([])
            case CallArguments(number, text):
                self._arguments[number].append(text)
            case CallEnd():
                pass

    def turn(self) -> StoredTurn:
        """Once the answer has ended."""
        # An answer of nothing is a message too.
        self._answer.content("")
        for name, arguments in zip(self._names, self._arguments, strict=True):
            self._answer.call(ToolCall(name, read_arguments("".join(arguments))))
        self._answer.end_turn()
        tokens = np.concatenate([self._prompt, np.array(self._tokens, dtype=np.int32)])
        return StoredTurn(tokens, (*self._messages, *self._answer.messages), self._context)
