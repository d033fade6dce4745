"""Holds each tool call back until it is finished, for clients that run a call before they read how
the answer ended.

One answer, one thread. Invariant: a call that the answer's length or a stop string cut off is never
given out.
"""

from collections.abc import Iterable
from io import StringIO

from tasuki.server.text.answer_parts import (
    AnswerItem,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Reasoning,
)


class WholeCalls:
    def __init__(self) -> None:
        self._begin: CallBegin | None = None
        self._arguments = StringIO()

    def push(self, items: Iterable[AnswerItem]) -> list[AnswerItem]:
        """Take the next parts of the answer; return those to give out."""
        given: list[AnswerItem] = []
        for item in items:
            match item:
                case CallBegin():
                    self._begin, self._arguments = item, StringIO()
                case CallArguments(_, text):
                    self._arguments.write(text)
                case CallEnd(number, is_cut):
                    assert self._begin is not None
                    if not is_cut:
                        whole = CallArguments(number, self._arguments.getvalue())
                        given += [self._begin, whole, item]
                case Content() | Reasoning():
                    given.append(item)
        return given
