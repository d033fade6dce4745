"""Ends an answer's content at the first of its stop strings, and looks at nothing else.

Owns the content that is held back because a stop string could begin in it. One answer, one thread.
Invariants: no stop string reaches over a tool call; white space counts as soon as it is written,
though a call behind it would leave it out, but for white space between calls; a letter is looked at
once.
"""

from collections.abc import Iterable

from tasuki.server.text.answer_parts import AnswerItem, CallBegin, Content
from tasuki.server.text.stop_strings import StopRule

from .held_space import HeldSpace


class ContentStops:
    def __init__(self, rule: StopRule) -> None:
        self._stops = rule.scanner()
        # White space that was looked at before it is known to be content: how many letters, and
        # those of it that no stop string can end any more.
        self._seen = 0
        self._passed = HeldSpace()
        self._called = False
        self._behind_call = False

    @property
    def found(self) -> str | None:
        """The stop string that has come, behind which there is no more answer."""
        return self._stops.found

    def take(self, items: Iterable[AnswerItem], space: HeldSpace) -> list[AnswerItem]:
        """Return the parts that are certain now. space: what may begin the next content."""
        found: list[AnswerItem] = []
        for item in items:
            if self._stops.found is not None:
                return found
            if isinstance(item, Content):
                self._content(item.text, found)
                continue
            if isinstance(item, CallBegin):
                found += self._flush()
                self._called = self._behind_call = True
            found.append(item)
        if self._stops.found is None and not self._behind_call:
            self._look_ahead(space.behind(self._seen), found)
        return found

    def finish(self) -> list[AnswerItem]:
        """Return what was held back, after the last part."""
        return [] if self._stops.found is not None else self._flush()

    def _content(self, text: str, found: list[AnswerItem]) -> None:
        new, self._seen = text[self._seen :], 0
        self._behind_call = False
        shown = self._passed.take() + self._stops.push(new)
        if shown:
            found.append(Content(shown))

    def _look_ahead(self, space: str, found: list[AnswerItem]) -> None:
        if not space:
            return
        self._seen += len(space)
        text = self._stops.push(space)
        if self._stops.found is not None:
            shown = self._passed.take() + text
            # White space behind calls is no content.
            if shown and not (self._called and shown.isspace()):
                found.append(Content(shown))
            return
        # Content before the white space may have been held back until now.
        passed = max(self._seen - self._stops.held, 0)
        before = len(text) - min(len(text), passed)
        if before:
            found.append(Content(text[:before]))
        self._passed.add(text[before:])

    def _flush(self) -> list[AnswerItem]:
        """Return the content held back, without the white space that proved to be none."""
        held = self._passed.take() + self._stops.finish()
        content = held[: len(held) - self._seen]
        self._seen = 0
        return [Content(content)] if content else []
