"""A grammar as a request asks for it, and its place in an answer.

Pure values and functions; placed() may take seconds, so it belongs on a codec's thread.
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
    GrammarsUnavailable,
)
from tasuki.server.errors import InvalidField
from tasuki.server.text.json_bounds import MAX_DEPTH, nested_too_deeply
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.thinking import END_OF_THINK, THINK, Thinking

MAX_CHOICES = 4096
# Between thinking and what follows it, as every template of these models writes it.
_GAP = "\n\n"
_END_TOKENS = 16
_SLASH = re.compile(r"(?<!\\)/")


@dataclass(frozen=True)
class AskedGrammar:
    """field: of the request, as errors name it."""

    field: str
    kind: GrammarKind
    source: str


def of_schema(field: str, schema: Any) -> AskedGrammar:
    """schema: an object or true, or the text of one. Raises InvalidField."""
    if isinstance(schema, str):
        schema = parsed(field, schema)
    if not isinstance(schema, dict) and schema is not True:
        raise InvalidField(field, "must be a JSON schema: an object, or true")
    return AskedGrammar(field, GrammarKind.JSON_SCHEMA, json.dumps(schema))


def parsed(field: str, text: str) -> Any:
    """What a grammar's JSON in a string says: bounded, as a body is, in what it takes to read it.
    Raises InvalidField."""
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
    """Any JSON object."""
    return of_schema(field, {"type": "object"})


def of_text(field: str, kind: GrammarKind, source: Any) -> AskedGrammar:
    """Raises InvalidField."""
    if not isinstance(source, str) or not source:
        raise InvalidField(field, "must be a string that is not empty")
    return AskedGrammar(field, kind, source)


def of_choices(field: str, choices: Sequence[Any]) -> AskedGrammar:
    """The answer is one of these texts. Raises InvalidField."""
    if not 0 < len(choices) <= MAX_CHOICES:
        raise InvalidField(field, f"must hold 1 to {MAX_CHOICES} strings, not {len(choices)}")
    if not all(isinstance(text, str) and text for text in choices):
        raise InvalidField(field, "must hold strings that are not empty")
    literals = " | ".join(map(literal, dict.fromkeys(choices)))
    return AskedGrammar(field, GrammarKind.LARK, f"start: {literals}")


def literal(text: str) -> str:
    """A string of Lark's."""
    return json.dumps(text, ensure_ascii=False)


def expression(pattern: str) -> str:
    """A regular expression as it stands between Lark's slashes."""
    return _SLASH.sub(r"\\/", pattern).replace("\n", "\\n")


def thinking_at_end(tokens: Tokens, codec: TextCodec) -> Thinking:
    """Of an answer to a prompt of which nothing but its tokens, int32 [T], is known."""
    if codec.tokenizer is None:
        return Thinking.NEVER
    end = codec.tokenizer.decode(tokens[-_END_TOKENS:].tolist()).rstrip()
    return Thinking.OPENED if end.endswith(THINK) else Thinking.NEVER


def placed(asked: AskedGrammar | None, thinking: Thinking, codec: TextCodec) -> Grammar | None:
    """Behind the thinking, where the answer may have any. Raises InvalidField where nobody can
    compile it."""
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
        terms = {"closing": closing, "gap": tuple(tokenizer.encode(_GAP))}
    elif thinking is Thinking.ALLOWED and closing is not None and opening is not None:
        gap = tuple(tokenizer.encode(_GAP))
        terms = {"closing": closing, "opening": opening, "gap": gap}
    return _followable(asked, codec, terms)


def check_followable(asked: AskedGrammar, codec: TextCodec) -> None:
    """Raises InvalidField where nobody can compile it, as placed() does."""
    _followable(asked, codec, {})


def _followable(asked: AskedGrammar, codec: TextCodec, terms: Mapping[str, Any]) -> Grammar:
    try:
        grammar = Grammar(asked.kind, asked.source, **terms)
        codec.grammars.check(grammar)
    except GrammarError as error:
        raise InvalidField(asked.field, f"cannot be followed: {error}") from error
    except GrammarsUnavailable as error:
        raise InvalidField(asked.field, f"is not served here: {error}") from error
    except ValueError as error:
        raise InvalidField(asked.field, str(error).removeprefix("grammar ")) from error
    return grammar
