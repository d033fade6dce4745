"""A grammar requested by a client, its position in an answer, and its trial (a test compilation).

Pure values and functions, except check_followable(). It waits for the node's trial server and
belongs on an event loop.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.engine.messages import Tokens
from tasuki.model.grammar.grammar import (
    MAX_SOURCE_BYTES,
    Grammar,
    GrammarError,
    GrammarKind,
    GrammarsBusy,
    GrammarsUnavailable,
)
from tasuki.model.grammar.held_schema import ignored_formats
from tasuki.server.errors import Busy, InvalidField
from tasuki.server.text.json_reading import MAX_DEPTH, nested_too_deeply
from tasuki.server.text.text_answer import BEHIND_THINKING, END_OF_THINK, THINK, Thinking
from tasuki.server.text.text_codec import TextCodec

MAX_TEXTS = 4096
_END_TOKENS = 16
_SLASH = re.compile(r"(?<!\\)/")


@dataclass(frozen=True)
class AskedGrammar:
    """A grammar requested by a client. field: the request's field, for errors. source: text of the
    grammar. parts: other grammars of the request contained in this one. Each is compiled alone
    first, so an error names its field. ignored: `format` values in its schemas not enforced by the
    grammar, from ignored_formats()."""

    field: str
    kind: GrammarKind
    source: str
    parts: tuple["AskedGrammar", ...] = ()
    ignored: tuple[str, ...] = ()


def of_schema(field: str, schema: Any) -> AskedGrammar:
    """Return the grammar of answers following a JSON schema. schema: an object, true, or JSON text
    of these. field: the request's field, for errors. Raises InvalidField."""
    if isinstance(schema, str):
        schema = parsed(field, schema)
    if not isinstance(schema, dict) and schema is not True:
        raise InvalidField(field, "must be a JSON schema: an object, or true")
    ignored = ignored_formats(schema)
    return AskedGrammar(field, GrammarKind.JSON_SCHEMA, json.dumps(schema), ignored=ignored)


def parsed(field: str, text: str) -> Any:
    """Return the value of a JSON text inside a request, such as a schema. Its size and depth are
    bounded, like a request body's. field: the request's field, for errors. Raises InvalidField."""
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_SOURCE_BYTES:
        raise InvalidField(field, f"must have at most {MAX_SOURCE_BYTES} bytes, not {size}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidField(field, f"is not JSON: {error}") from error
    if nested_too_deeply(value):
        raise InvalidField(field, f"is nested too deeply: use at most {MAX_DEPTH} levels")
    return value


def of_any_object(field: str) -> AskedGrammar:
    """Return the grammar of answers with any JSON object. field: the request's field, for
    errors."""
    return of_schema(field, {"type": "object"})


def of_text(field: str, kind: GrammarKind, source: Any) -> AskedGrammar:
    """Return a grammar from its source text. kind: language of the source. field: the request's
    field, for errors. Raises InvalidField."""
    if not isinstance(source, str) or not source:
        raise InvalidField(field, "must be a string that is not empty")
    return AskedGrammar(field, kind, source)


def of_choices(field: str, choices: Sequence[Any]) -> AskedGrammar:
    """Return the grammar of answers equal to one of the texts `choices`. field: the request's
    field, for errors. Raises InvalidField."""
    if not 0 < len(choices) <= MAX_TEXTS:
        raise InvalidField(field, f"must hold 1 to {MAX_TEXTS} strings, not {len(choices)}")
    if not all(isinstance(text, str) and text for text in choices):
        raise InvalidField(field, "must hold strings that are not empty")
    literals = " | ".join(map(literal, dict.fromkeys(choices)))
    return AskedGrammar(field, GrammarKind.LARK, f"start: {literals}")


def literal(text: str) -> str:
    """Return the text as a string literal of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)


def expression(pattern: str) -> str:
    """Return a regular expression escaped for use between slashes in a Lark grammar."""
    return _SLASH.sub(r"\\/", pattern).replace("\n", "\\n")


def thinking_at_end(tokens: Tokens, codec: TextCodec) -> Thinking:
    """Return the thinking state at the end of a prompt given as token ids, int32 [T]. It is OPENED
    if the prompt ends with the thinking tag, otherwise NEVER."""
    if codec.tokenizer is None:
        return Thinking.NEVER
    end = codec.tokenizer.decode(tokens[-_END_TOKENS:].tolist()).rstrip()
    return Thinking.OPENED if end.endswith(THINK) else Thinking.NEVER


def placed(asked: AskedGrammar | None, thinking: Thinking, codec: TextCodec) -> Grammar | None:
    """Return the engine's grammar for an answer. It holds only after the thinking, if the answer
    may think. The grammar is not compiled yet: see check_followable(). Raises InvalidField."""
    if asked is None:
        return None
    tokenizer = codec.tokenizer
    if tokenizer is None:
        raise InvalidField(asked.field, "needs a checkpoint with a tokenizer.json")
    terms: dict[str, Any] = {}
    closing, opening = (tokenizer.added_tokens.get(tag) for tag in (END_OF_THINK, THINK))
    if thinking is Thinking.OPENED and closing is None:
        raise InvalidField(
            asked.field,
            f"needs a tokenizer in which {END_OF_THINK} is a token, since this template opens the "
            "model's thinking: send chat_template_kwargs that turn it off",
        )
    if thinking is Thinking.OPENED:
        terms = {"closing": closing, "gap": tuple(tokenizer.encode(BEHIND_THINKING))}
    elif thinking is Thinking.ALLOWED and closing is not None and opening is not None:
        gap = tuple(tokenizer.encode(BEHIND_THINKING))
        terms = {"closing": closing, "opening": opening, "gap": gap}
    for part in (*asked.parts, asked):
        _grammar_of(part, {})
    return _grammar_of(asked, terms)


def _grammar_of(asked: AskedGrammar, terms: Mapping[str, Any]) -> Grammar:
    try:
        return Grammar(asked.kind, asked.source, **terms)
    except ValueError as error:
        raise InvalidField(asked.field, str(error).removeprefix("grammar ")) from error


async def check_followable(asked: AskedGrammar | None, codec: TextCodec, caller: str) -> None:
    """Wait until the node's trial server has compiled the grammar and its parts. caller: name of
    the caller; its trials use its share of the server. If the task is cancelled, its trial is given
    up. Raises InvalidField if a grammar cannot be compiled, Busy if one was not tried in time."""
    for part in () if asked is None else (*asked.parts, asked):
        try:
            await codec.grammars.check(caller, part.kind, part.source)
        except GrammarError as error:
            raise InvalidField(part.field, f"cannot be followed: {error}") from error
        except GrammarsUnavailable as error:
            raise InvalidField(part.field, f"is not served here: {error}") from error
        except GrammarsBusy as error:
            raise Busy(f"{part.field}: {error}") from error
