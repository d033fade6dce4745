"""Grammars from structural tags: JSON definitions of an answer's parts, as free text, by a schema
or by a regular expression. vLLM, SGLang and gateways use them with XGrammar.

Pure functions. Formats expressible in a Lark grammar are supported. Other formats and unknown keys
are rejected, and the error names their position.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from tasuki.model.grammar.compiled_grammar import with_options
from tasuki.model.grammar.grammar import GrammarError, GrammarKind
from tasuki.model.grammar.held_schema import MOST_IGNORED_FORMATS, ignored_formats
from tasuki.server.errors import InvalidField

from .asked_grammar import AskedGrammar, expression, literal, parsed

_ANY_TEXT = "/(?s:.*)/"
_LEGACY = ("structures", "triggers", "at_least_one")


def of_structural_tag(field: str, tag: Any) -> AskedGrammar:
    """Return the grammar of a structural tag. tag: an object, or its JSON text. It has a `format`
    or, in the older shape, `structures` and `triggers`. field: the request's field, for errors.
    Raises InvalidField."""
    if isinstance(tag, str):
        tag = parsed(field, tag)
    if not isinstance(tag, dict) or tag.get("type") not in (None, "structural_tag"):
        raise InvalidField(field, "must be an object of type structural_tag")
    if "format" in tag:
        _refuse_others(tag, field, ("type", "format"))
        place, form = f"{field}.format", tag["format"]
    else:
        _refuse_others(tag, field, ("type", *_LEGACY))
        place, form = field, _from_legacy(tag, field)
    rules = _Rules()
    rules.lines.insert(0, f"start: {rules.of(form, place, is_last=True)}")
    ignored = tuple(islice(rules.ignored, MOST_IGNORED_FORMATS))
    return AskedGrammar(field, GrammarKind.LARK, "\n".join(rules.lines), ignored=ignored)


def _from_legacy(tag: Mapping[str, Any], field: str) -> dict[str, Any]:
    structures = tag.get("structures")
    if not isinstance(structures, list):
        raise InvalidField(field, "must have a format, or structures and triggers")
    tags = []
    for index, item in enumerate(structures):
        place = f"{field}.structures[{index}]"
        if not isinstance(item, dict):
            raise InvalidField(place, "must be an object")
        _refuse_others(item, place, ("begin", "schema", "end"))
        schema = {} if item.get("schema") is None else item["schema"]
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"begin": item.get("begin"), "content": content, "end": item.get("end")})
    given = {name: tag[name] for name in _LEGACY[1:] if name in tag}
    return {"type": "triggered_tags", "tags": tags, **given}


class _Rules:
    """The Lark rules of one structural tag. lines: the rules so far. ignored: `format` values in
    its schemas not enforced by the grammar."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.ignored: dict[str, None] = {}

    def of(self, form: Any, place: str, *, is_last: bool) -> str:
        """Add the rules of a format, and return their Lark term. form: the format's object. place:
        its position in the request, for errors. is_last: nothing follows the format in the
        answer."""
        if not isinstance(form, dict):
            raise InvalidField(place, "must be an object with a type")
        match form.get("type"):
            case "const_string":
                _refuse_others(form, place, ("type", "value"))
                return literal(_text(form, place, "value"))
            case "json_schema":
                _refuse_others(form, place, ("type", "json_schema", "style"))
                self.ignored.update(dict.fromkeys(ignored_formats(form.get("json_schema"))))
                return _schema(form, place)
            case "regex":
                _refuse_others(form, place, ("type", "pattern"))
                return f"/{expression(_text(form, place, 'pattern'))}/"
            case "any_text":
                _refuse_others(form, place, ("type",))
                if not is_last:
                    raise InvalidField(place, "must be the last of the answer, or be in a tag")
                return self._terminal(_ANY_TEXT)
            case "sequence" | "or" as kind:
                _refuse_others(form, place, ("type", "elements"))
                return self._joined(kind, form, place, is_last)
            case "tag":
                _refuse_others(form, place, ("type", "begin", "content", "end"))
                return self._named(f"{_quoted(form, place, 'begin')} {self._behind(form, place)}")
            case "triggered_tags":
                return self._triggered(form, place, is_last)
            case "tags_with_separator":
                return self._separated(form, place)
            case other:
                raise InvalidField(f"{place}.type", f"{other!r:.60} is not supported here")

    def _named(self, body: str, options: str = "") -> str:
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}{options}: {body}")
        return name

    def _terminal(self, body: str) -> str:
        name = f"T{len(self.lines)}"
        self.lines.append(f"{name}: {body}")
        return name

    def _joined(self, kind: str, form: Mapping[str, Any], place: str, is_last: bool) -> str:
        elements = _items(form, place, "elements")
        ends = [is_last and (kind == "or" or item is elements[-1]) for item in elements]
        parts = [
            self.of(item, f"{place}.elements[{index}]", is_last=end)
            for index, (item, end) in enumerate(zip(elements, ends, strict=True))
        ]
        return self._named((" " if kind == "sequence" else " | ").join(parts))

    def _behind(self, tag: Mapping[str, Any], place: str) -> str:
        """Return the Lark terms of a tag's content and end, after its begin. place: position of the
        tag, for errors."""
        ends = tag.get("end")
        ends = [ends] if isinstance(ends, str) else ends
        if not isinstance(ends, list) or not all(isinstance(end, str) for end in ends) or not ends:
            raise InvalidField(f"{place}.end", "must be a string, or a list of these")
        end = f"({' | '.join(map(literal, ends))})"
        content = tag.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text":
            _refuse_others(content, f"{place}.content", ("type",))
            if not all(ends):
                raise InvalidField(f"{place}.end", "must not be empty behind any_text")
            return self._named(f"{_ANY_TEXT} {end}", "[lazy]")
        inner = self.of(content, f"{place}.content", is_last=False)
        return inner if ends == [""] else f"{inner} {end}"

    def _triggered(self, form: Mapping[str, Any], place: str, is_last: bool) -> str:
        """Return the rule for any text with tags: each trigger in the text must continue as one of
        its tags. form: the format's object. place: its position, for errors. is_last: nothing
        follows the format in the answer."""
        known = ("type", "triggers", "tags", "at_least_one", "stop_after_first")
        _refuse_others(form, place, known)
        triggers = _items(form, place, "triggers")
        if not all(isinstance(text, str) and text for text in triggers):
            raise InvalidField(f"{place}.triggers", "must be strings that are not empty")
        once = _flag(form, place, "stop_after_first")
        if not once and not is_last:
            raise InvalidField(place, "must be the last of the answer, or stop after its first tag")
        any_of_them = "|".join(expression(re.escape(text)) for text in triggers)
        # Named once, because otherwise each trigger's rule would contain all triggers again.
        free = self._terminal(f"{_ANY_TEXT} & ~/(?s:.*)({any_of_them})(?s:.*)/")
        shortest = _Shortest(triggers)
        behind: dict[str, list[str]] = {}
        for tag_place, tag in _tags(form, place):
            begin = _text(tag, tag_place, "begin")
            trigger = shortest.that_begins(begin)
            if trigger is None:
                raise InvalidField(f"{tag_place}.begin", "must begin with one of the triggers")
            rest = begin.removeprefix(trigger)
            opening = [literal(rest)] if rest else []
            behind.setdefault(trigger, []).append(
                " ".join([*opening, self._behind(tag, tag_place)])
            )
        pieces = []
        for trigger, tags in behind.items():
            before = self._named(f"{free} {literal(trigger)}", "[lazy]")
            pieces.append(f"{before} ({' | '.join(tags)})")
        piece = self._named(" | ".join(pieces))
        least_one = _flag(form, place, "at_least_one")
        if once:
            return piece if least_one else self._named(f"{piece} | {free}")
        return self._named(f"{piece}{'+' if least_one else '*'} {free}")

    def _separated(self, form: Mapping[str, Any], place: str) -> str:
        known = ("type", "tags", "separator", "at_least_one", "stop_after_first")
        _refuse_others(form, place, known)
        tags = [
            self.of({"type": "tag", **tag}, tag_place, is_last=False)
            for tag_place, tag in _tags(form, place)
        ]
        one = self._named(" | ".join(tags))
        if not _flag(form, place, "stop_after_first"):
            separator = _quoted(form, place, "separator")
            one = self._named(f"{one} ({separator} {one})*")
        return one if _flag(form, place, "at_least_one") else self._named(f"{one}?")


class _Shortest:
    """A search over a set of texts for the shortest one at the beginning of another text."""

    def __init__(self, texts: Iterable[str]) -> None:
        # Texts with a shorter listed text as a prefix are left out. In sorted order, a text
        # beginning with a remaining one then comes directly after it.
        self._texts: list[str] = []
        for text in sorted(texts):
            if not self._texts or not text.startswith(self._texts[-1]):
                self._texts.append(text)

    def that_begins(self, text: str) -> str | None:
        """Return the shortest text of the set at the beginning of `text`; None if there is none."""
        place = bisect_right(self._texts, text)
        found = self._texts[place - 1] if place else None
        return found if found is not None and text.startswith(found) else None


def _tags(form: Mapping[str, Any], place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, tag in enumerate(_items(form, place, "tags")):
        tag_place = f"{place}.tags[{index}]"
        if not isinstance(tag, dict) or tag.get("type") not in (None, "tag"):
            raise InvalidField(tag_place, "must be an object of type tag")
        _refuse_others(tag, tag_place, ("type", "begin", "content", "end"))
        yield tag_place, tag


def _schema(form: Mapping[str, Any], place: str) -> str:
    if form.get("style") not in (None, "json"):
        raise InvalidField(f"{place}.style", "must be json")
    try:
        return f"%json {json.dumps(with_options(form.get('json_schema')))}"
    except GrammarError as error:
        raise InvalidField(f"{place}.json_schema", f"cannot be followed: {error}") from error


def _items(form: Mapping[str, Any], place: str, name: str) -> list[Any]:
    items = form.get(name)
    if not isinstance(items, list) or not items:
        raise InvalidField(f"{place}.{name}", "must be a list that is not empty")
    return items


def _text(form: Mapping[str, Any], place: str, name: str) -> str:
    text = form.get(name)
    if not isinstance(text, str):
        raise InvalidField(f"{place}.{name}", "must be a string")
    return text


def _quoted(form: Mapping[str, Any], place: str, name: str) -> str:
    return literal(_text(form, place, name))


def _flag(form: Mapping[str, Any], place: str, name: str) -> bool:
    flag = form.get(name)
    if not isinstance(flag, bool | None):
        raise InvalidField(f"{place}.{name}", "must be true or false")
    return bool(flag)


def _refuse_others(form: Mapping[str, Any], place: str, known: Collection[str]) -> None:
    for name, value in form.items():
        if name not in known and value not in (None, [], False):
            raise InvalidField(f"{place}.{name:.60}", "is not supported here: leave it out")
