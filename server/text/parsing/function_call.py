"""A reader of tool calls in the format of Qwen3-Coder and Qwen3.5, <function=...><parameter=...>.
It converts the call's text, as it comes, to the text of a JSON object.

Owns the text not read yet: a few tags, a name and the white space among them. One call, one thread.
Invariants: a closing tag counts only if the format continues after it, so a value may hold any of
the tags. A value of type string is returned as it is written, any other value once it is complete.
A key is returned with the first character of its value, so the object can be closed after any
character. docs/tool-calls.md has the rules as a table.
"""

import json
from io import StringIO

from tasuki.server.text.json_reading import JsonDepth
from tasuki.server.text.text_answer import AnswerItem, CallArguments, CallEnd

from .call_reader import (
    FUNCTION_TAG,
    PARAMETER_TAG,
    CallState,
    Follows,
    Step,
    Tag,
    call_arguments,
    call_begin,
    name_end,
    next_end_of_value,
    next_tag,
    plain_name,
    space_end,
    tag_at,
    torn_tag,
)
from .parameter_types import ParameterTypes, json_of

_NULL = "null"
_MOST_TAGS = 4
"""Largest number of tags read after a closing tag to see if the format continues."""
_TAG_BEGINNING = "<parameter"


class FunctionCall:
    """A CallReader for calls in the format <function=...><parameter=...>. REQUIRES: FUNCTION_TAG
    begins the text."""

    def __init__(self, number: int, types: ParameterTypes, *, only_known: bool = False) -> None:
        """number: index of the call in the answer. types: parameter types of the request's tools.
        only_known: reject a call of a function not among the tools."""
        self.state = CallState.READING
        self.left = ""
        self.decided = 0
        self._number = number
        self._types = types
        self._only_known = only_known
        self._held = ""
        self._finishing = False
        self._function = ""
        self._seen: set[str] = set()
        # The seen parameters with a value already given out.
        self._keys: set[str] = set()
        self._key = ""
        self._value = _Value(frozenset(), "")
        self._step: Step = self._open

    def letters(self, text: str) -> CallArguments | None:
        # push() handles a tag, and a line break before a tag.
        if self._held or "<" in text or text.endswith("\n") or self._step != self._pass_value:
            return None
        found = self._value.letters(text)
        return CallArguments(self._number, found) if found else None

    def push(self, text: str) -> list[AnswerItem]:
        self._held += text
        items: list[AnswerItem] = []
        while self.state is CallState.READING and self._step(items):
            pass
        return items

    def finish(self, was_cut: bool) -> list[AnswerItem]:
        self._finishing = True
        items = self.push("")
        if self.state is not CallState.READING:
            return items
        if self._step == self._open:
            self._refuse(len(self._held))
            return items
        if self._step == self._pass_value:
            certain = len(self._held) - torn_tag(self._held)
            self._give(self._value.push(self._held[:certain]), items)
            self._give(self._value.finish(was_cut), items)
        self._end("", items, was_cut)
        return items

    def _open(self, items: list[AnswerItem]) -> bool:
        follows, end = name_end(self._held, len(FUNCTION_TAG))
        name = plain_name(self._held[len(FUNCTION_TAG) : end])
        if follows is Follows.NO or (
            follows is Follows.YES and self._only_known and not self._types.knows(name)
        ):
            self._refuse(end)
            return False
        if follows is Follows.OPEN:
            return False
        self._function = name
        items.append(call_begin(self._number, name))
        items += call_arguments(self._number, "{")
        self._held = self._held[end + 1 :]
        self._step = self._between
        return True

    def _between(self, items: list[AnswerItem]) -> bool:
        """Read the text between two parameters. Only tags count; other text is skipped."""
        at = next_tag(self._held)
        if at is None:
            self._held = self._held[len(self._held) - torn_tag(self._held) :]
            return False
        self._held = self._held[at:]
        follows, tag, end = tag_at(self._held, 0)
        if follows is Follows.OPEN and not self._finishing:
            return False
        if tag is Tag.PARAMETER:
            return self._open_parameter(end)
        if tag is Tag.END_OF_FUNCTION:
            return self._end(self._held[end:], items)
        if tag is Tag.END_OF_CALL:
            return self._end(self._held, items)
        if tag is Tag.FUNCTION or tag is Tag.CALL:
            return self._open_next(tag, end, items)
        self._held = self._held[end:]
        return True

    def _open_next(self, tag: Tag, end: int, items: list[AnswerItem]) -> bool:
        """Read an opening tag of the next call, or a repeated tag of this call. end: index after
        the tag."""
        follows = self._begins_call(tag, end)
        if follows is Follows.OPEN:
            return False
        if follows is Follows.YES and not self._is_doubled(tag, end):
            return self._end(self._held, items)
        self._held = self._held[end:]
        return True

    def _is_doubled(self, tag: Tag, at: int) -> bool:
        """Return True if the tag repeats this call's own function tag. at: index of the name in the
        tag."""
        if tag is not Tag.FUNCTION or self._seen:
            return False
        return plain_name(self._held[at : name_end(self._held, at)[1]]) == self._function

    def _open_parameter(self, at: int) -> bool:
        follows, end = name_end(self._held, at)
        if follows is Follows.NO:
            self._held = self._held[at:]
            return True
        if follows is Follows.OPEN or (end + 1 == len(self._held) and not self._finishing):
            # A line break directly after the tag is not part of the value.
            return False
        self._key = plain_name(self._held[at:end])
        lead = f"{', ' if self._keys else ''}{json.dumps(self._key, ensure_ascii=False)}: "
        self._value = _Value(self._types.of(self._function, self._key), lead)
        if self._key in self._seen:
            # The first of two values is the parameter's.
            self._value = _Dropped(frozenset(), "")
        self._seen.add(self._key)
        self._held = self._held[end + 1 :].removeprefix("\n")
        self._step = self._pass_beginning
        return True

    def _pass_beginning(self, items: list[AnswerItem]) -> bool:
        """Read the first characters of a parameter's value, or a parameter tag in place of the
        value."""
        if not self._held.startswith(PARAMETER_TAG):
            if PARAMETER_TAG.startswith(self._held) and not self._finishing:
                return False
            self._step = self._pass_value
            return True
        follows, end = name_end(self._held, len(PARAMETER_TAG))
        if follows is Follows.OPEN and not self._finishing:
            return False
        name = plain_name(self._held[len(PARAMETER_TAG) : end])
        if follows is Follows.YES and name == self._key:
            if end + 1 == len(self._held) and not self._finishing:
                return False
            # The tag was written twice.
            self._held = self._held[end + 1 :].removeprefix("\n")
        elif follows is Follows.YES:
            follows = self._begins_next(name, end)
            if follows is Follows.OPEN:
                return False
            if follows is Follows.YES:
                self._give(self._value.end(), items)
                self._step = self._between
                return True
        self._step = self._pass_value
        return True

    def _pass_value(self, items: list[AnswerItem]) -> bool:
        found = next_end_of_value(self._held)
        if found is None:
            certain = len(self._held) - torn_tag(self._held)
            self._give(self._value.push(self._held[:certain]), items)
            self._held = self._held[certain:]
            return False
        start, at = found[0], found[1] - found[0]
        self._give(self._value.push(self._held[:start]), items)
        self._held = self._held[start:]
        follows, tag, end = tag_at(self._held, at)
        if follows is Follows.YES:
            assert tag is not None
            follows = self._ends_value(tag, end)
        if follows is Follows.OPEN:
            if not self._finishing:
                return False
            follows = Follows.YES
        if follows is Follows.NO:
            self._give(self._value.push(self._held[: at + 1]), items)
            self._held = self._held[at + 1 :]
            return True
        self._give(self._value.end(), items)
        # After it only the end of a function counts, not the end of a parameter.
        self._held = self._held[end if tag is Tag.END_OF_PARAMETER else at :]
        self._step = self._between
        return True

    def _ends_value(self, tag: Tag, end: int) -> Follows:
        """Return YES if a tag inside a value ends the value, NO if it is text of the value, OPEN if
        more text decides. end: index after the tag."""
        if tag is Tag.PARAMETER:
            follows, behind = name_end(self._held, end)
            if follows is not Follows.YES:
                return follows
            return self._begins_next(plain_name(self._held[end:behind]), behind)
        for _ in range(_MOST_TAGS):
            place = space_end(self._held, end)
            if place is None:
                return Follows.NO
            if place == len(self._held):
                return self._undecided
            follows, following, end = tag_at(self._held, place)
            if follows is not Follows.YES:
                return self._undecided if follows is Follows.OPEN else follows
            assert following is not None
            if following is Tag.END_OF_CALL:
                return Follows.YES
            if following in (Tag.FUNCTION, Tag.CALL):
                return self._begins_call(following, end)
            if following is Tag.PARAMETER:
                return self._new_parameter(end) if tag is Tag.END_OF_PARAMETER else Follows.NO
            if following is Tag.END_OF_PARAMETER and (
                tag is not Tag.END_OF_PARAMETER or self._value.holds_tag
            ):
                # In a value with an opening tag, this end belongs to the opening tag.
                return Follows.NO
            tag = following
        return Follows.NO

    def _begins_call(self, tag: Tag, at: int) -> Follows:
        """Return YES if a tag begins a call of one of the tools, NO if not, OPEN if more text
        decides. at: index after the tag."""
        if tag is Tag.CALL:
            place = space_end(self._held, at)
            if place is None:
                return Follows.NO
            if self._held.startswith("{", place):
                return Follows.YES
            if place == len(self._held):
                return self._undecided
            follows, following, at = tag_at(self._held, place)
            if follows is Follows.OPEN:
                return self._undecided
            if following is not Tag.FUNCTION:
                return Follows.NO
        follows, end = name_end(self._held, at)
        if follows is Follows.OPEN:
            return self._undecided
        if follows is Follows.YES and not self._types.knows(plain_name(self._held[at:end])):
            return Follows.NO
        return follows

    def _new_parameter(self, at: int) -> Follows:
        follows, end = name_end(self._held, at)
        if follows is Follows.OPEN:
            return self._undecided
        if follows is Follows.YES and plain_name(self._held[at:end]) == self._key:
            return Follows.NO
        return follows

    def _begins_next(self, name: str, bracket: int) -> Follows:
        """Return YES if a parameter tag inside a value begins the next parameter: the schema has
        its name, and the tag ends its line. Return NO if not, OPEN if more text decides. bracket:
        index of the tag's closing bracket."""
        if name in self._seen or not self._types.has(self._function, name):
            return Follows.NO
        if bracket + 1 == len(self._held):
            return self._undecided
        return Follows.YES if self._held[bracket + 1] == "\n" else Follows.NO

    @property
    def _undecided(self) -> Follows:
        """Return the decision about a possible tag without its end: OPEN, or YES if the answer has
        ended."""
        return Follows.YES if self._finishing else Follows.OPEN

    def _give(self, text: str, items: list[AnswerItem]) -> None:
        """Add text of the open parameter's JSON to the answer's parts."""
        if text:
            self._keys.add(self._key)
            items += call_arguments(self._number, text)

    def _end(self, left: str, items: list[AnswerItem], was_cut: bool = False) -> bool:
        lacks = self._types.lacks(self._function, self._keys)
        items += [*call_arguments(self._number, "}"), CallEnd(self._number, was_cut, lacks)]
        self.left = left
        self.state = CallState.ENDED
        return False

    def _refuse(self, decided: int) -> None:
        self.left = self._held
        self.decided = decided
        self.state = CallState.NO_CALL


class _Value:
    """Converter of one parameter's value to JSON text, as it comes. types: JSON types allowed by
    its schema. lead: the key, colon and a comma before it, returned with the value's first
    character."""

    def __init__(self, types: frozenset[str], lead: str) -> None:
        self._types = types
        self._lead = lead
        self._collected = StringIO()
        self._depth = JsonDepth()
        # The first letters after white space, while they may be those of null.
        self._first = ""
        self._streaming = False
        self._is_empty = True
        self._end_of_text = ""
        self.holds_tag = False
        """True if the value contains the beginning of a parameter tag."""

    def letters(self, text: str) -> str:
        """Return the text escaped for JSON, as push() does, if a string has begun. Otherwise return
        no text. REQUIRES: the text has no beginning of a tag."""
        if not self._streaming:
            return ""
        self._end_of_text = ""
        return _letters(text)

    def push(self, text: str) -> str:
        if not text:
            return ""
        self._is_empty = False
        text_and_end = self._end_of_text + text
        self.holds_tag = self.holds_tag or _TAG_BEGINNING in text_and_end
        self._end_of_text = text_and_end[-len(_TAG_BEGINNING) :]
        if self._streaming:
            return _letters(text)
        self._collected.write(text)
        if self._types != {"string"}:
            self._depth.add(text)
        if not self._is_string(text):
            return ""
        self._streaming = True
        whole, self._collected = self._collected.getvalue(), StringIO()
        return f'{self._lead}"{_letters(whole)}'

    def end(self) -> str:
        """Return the rest of the value's JSON text, at a tag ending the value."""
        if self._streaming:
            return '"'
        return self._lead + json_of(self._collected.getvalue(), self._types, self._depth)

    def finish(self, was_cut: bool) -> str:
        """Return the rest of the value's JSON text, if the answer ends inside the value. A string
        keeps its characters so far. Any other value must be complete. If the answer was cut, this
        is unsure, so the value is left out."""
        if self._streaming:
            return '"'
        if was_cut or self._is_empty:
            return ""
        found = json_of(self._collected.getvalue(), self._types, self._depth)
        is_other = found.startswith('"') and "string" not in self._types
        return "" if is_other else self._lead + found

    def _is_string(self, text: str) -> bool:
        """Return True if the value is certain to be a string, judged by its characters up to the
        end of `text`."""
        if "string" not in self._types or self._types - {"string", "null"}:
            return False
        if self._types == {"string"}:
            return True
        first = (self._first + text).lstrip()
        word = first.rstrip()
        # One space represents all white space possibly ending the value.
        self._first = f"{word} " if word and len(word) < len(first) else word
        return not _NULL.startswith(word.lower())


class _Dropped(_Value):
    """The value of a parameter written a second time. It is left out."""

    def push(self, text: str) -> str:
        return ""

    def end(self) -> str:
        return ""

    def finish(self, was_cut: bool) -> str:
        return ""


def _letters(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
