"""Compilation of a grammar for a vocabulary by llguidance, within bounds of time and memory.

The only importer of llguidance. The import happens at the first grammar. If it fails,
GrammarsUnavailable is raised. All bounds are llguidance's own. They limit a grammar's symbols, the
lexer's work at compilation and at each step, the items of a step, and the states of the lexer. If a
step passes a bound, the matcher (the state of one answer) fails and allows no further token
(constraint.py). Compiling releases Python's global lock. Building a vocabulary's token tree holds
this lock: for 248 thousand tokens it takes a second.
"""

import importlib
import json
import re
from collections.abc import Mapping
from typing import Any

from .grammar import Grammar, GrammarError, GrammarKind, GrammarsUnavailable
from .held_schema import held_schema
from .vocabulary import Vocabulary

Matcher = Any
"""An llguidance.LLMatcher at the beginning of an answer. Consume an answer's tokens only in a copy
from its deep_copy()."""

# White space between JSON values is allowed, so a model may write as it has learnt. It is bounded,
# so every answer ends. Only characters that need an escape have one. So no key is written in two
# ways, because a schema's rules would see one of them.
JSON_OPTIONS: Mapping[str, Any] = {
    "whitespace_flexible": True,
    "whitespace_pattern": "[ ]{1,2}|\\n[ \\t]{0,32}",
    "json_allowed_escapes": 'nrbtf\\"',
    "lenient": False,
    "coerce_one_of": False,
}

_LIMITS = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 25_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
# Allow any tokens that make up the text. The tokenizer's own choice alone would be requested at
# each step.
_FREE_TOKENS = '%llguidance {"no_forcing": true}'
_LONGEST_COMPLAINT = 300
# Keywords with values that are no schemas.
_VALUES = frozenset({"const", "enum", "default", "examples", "example"})
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_NO_NEXT_BYTE = "NoExtension"
_SPENT = "too many states"
# A rule's option in llguidance's Lark. A mask cannot enforce it.
_TEMPERATURE = re.compile(r"^[ \t]*[\w-]+[ \t]*\[[^\]\n]*\btemperature[ \t]*=", re.MULTILINE)
# Lines of the source and the marker below them. They mean nothing if the source is made here.
_EXCERPT = re.compile(
    r"^\s*(\d+ \|.*|\^)$|^at \d+\(\d+\): (failed to compile JSON schema: )?", re.MULTILINE
)

# Advice for a caller, in place of llguidance's own options and limits.
_WAYS_OUT = {
    "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with "
    "anyOf": "oneOf is supported where no value follows two of its branches by their types, or by "
    "a required property with different constants: write anyOf, or such branches",
    'min/maxProperties only supported when all keys listed in "properties" are required': (
        "minProperties and maxProperties are supported where all properties that are listed are "
        "required, or additionalProperties is false"
    ),
    "fuel exhausted when checking relevance of lexemes": (
        "lengths and patterns of its strings take too much work together: write smaller lengths, "
        "or leave some out"
    ),
    "Failed to generate regex for float range": (
        "minimum and maximum of a number are too large to be compared digit by digit: write "
        "smaller ones, or leave them out"
    ),
    "Unimplemented keys:": "these keywords are not supported, leave them out:",
}


def _llguidance() -> Any:
    try:
        return importlib.import_module("llguidance")
    except Exception as error:  # a broken installation may raise any error
        raise GrammarsUnavailable(
            f"grammars need the package llguidance, which cannot be imported ({error!r:.200}): "
            "install tasuki's dependencies again"
        ) from error


class _Tokenizer:
    """A vocabulary in the form of a tokenizer, as llguidance's TokenizerWrapper requires."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        # Only a tree of the bytes is needed. Tokens without text are in no grammar.
        self.tokens = [
            token or b"<|%d|>" % number for number, token in enumerate(vocabulary.tokens)
        ]
        self.special_token_ids = [
            number for number, token in enumerate(vocabulary.tokens) if not token
        ]
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = None

    def __call__(self, text: str | bytes) -> list[int]:
        """Return no tokens for any text. llguidance needs this call only for forced tokens, and
        none are forced here."""
        return []


def token_tree(vocabulary: Vocabulary) -> Any:
    """Build and return the token tree (llguidance.LLTokenizer) of a vocabulary, an argument of
    compiled(). Raises GrammarsUnavailable, also for a vocabulary without an end token."""
    library = _llguidance()
    if not vocabulary.eos_ids:
        raise GrammarsUnavailable("grammars need a model with an end token in its config.json")
    wrapped = library.TokenizerWrapper(_Tokenizer(vocabulary))
    return library.LLTokenizer(wrapped, eos_token=list(vocabulary.eos_ids))


def compiled(tree: Any, grammar: Grammar) -> Matcher:
    """Compile the grammar for the vocabulary of a token tree. Return its matcher. Any thread may
    call it. Raises GrammarError."""
    library = _llguidance()
    matcher = library.LLMatcher(
        tree, _source(library, grammar), log_level=0, limits=library.LLParserLimits(**_LIMITS)
    )
    if matcher.is_error():
        raise GrammarError(_complaint(matcher.get_error()))
    return matcher


def is_spent(matcher: Matcher) -> bool:
    """Return true if the matcher's lexer has reached its bound of states. Copies of a matcher share
    the lexer, so another answer may have made the states."""
    return bool(matcher.is_error()) and _SPENT in matcher.get_error()


def check_has_texts(matcher: Matcher) -> None:
    """Raise GrammarError if no text matches the grammar, because each answer would be empty.
    matcher: compiled for a small vocabulary with every byte."""
    own = matcher.deep_copy()
    own.compute_bitmask()
    if own.is_error() and _NO_NEXT_BYTE in own.get_error():
        raise GrammarError("no text follows it")


def _source(library: Any, grammar: Grammar) -> str:
    """Return the grammar's source in llguidance's own format."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            rules = f"start: %json {json.dumps(with_options(_schema(grammar.source)))}"
        case GrammarKind.REGEX:
            rules = f"start: /{library.regex_to_lark(grammar.source, '')}/"
        case _:
            if _TEMPERATURE.search(grammar.source):
                raise GrammarError("a rule's temperature is not supported")
            to_lark = importlib.import_module("llguidance.gbnf_to_lark").any_to_lark
            try:
                rules = to_lark(grammar.source)
            except Exception as error:  # a plain script with any kind of error
                raise GrammarError(f"cannot be read as GBNF: {_complaint(str(error))}") from error
    return str(library.LLMatcher.grammar_from_lark(f"{_FREE_TOKENS}\n{rules}"))


def _schema(source: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"is not JSON: {error}") from error


def with_options(schema: Any) -> dict[str, Any]:
    """Return the caller's JSON schema, rewritten for llguidance and with llguidance's options.
    Raises GrammarError, also if the schema is neither an object nor true."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError("must be a JSON schema: an object, or true")
    return options_of(held_schema(schema))


def options_of(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema, already rewritten for llguidance, with llguidance's options in place of its
    own. Raises GrammarError if llguidance would compile the schema too loosely."""
    _refuse_what_leaks(held)
    # A schema's own value of this key would loosen it.
    return {**held, "x-guidance": dict(JSON_OPTIONS)}


def _refuse_what_leaks(schema: Mapping[str, Any]) -> None:
    """Raise GrammarError if llguidance would compile the schema into a looser grammar. One cause is
    a least number of unnamed keys, because llguidance lets keys repeat. The other is a control
    character without an escape in JSON_OPTIONS, because llguidance leaves it out."""
    left: list[tuple[Any, bool]] = [(schema, True)]
    while left:
        item, is_schema = left.pop()
        if isinstance(item, str) and _CONTROL.search(item):
            raise GrammarError("control characters are not supported")
        if isinstance(item, list):
            left += [(value, is_schema) for value in item]
        if not isinstance(item, Mapping):
            continue
        if is_schema:
            _refuse_counts(item)
        left += [(key, False) for key in item]
        left += [(value, is_schema and key not in _VALUES) for key, value in item.items()]


def _refuse_counts(schema: Mapping[str, Any]) -> None:
    least, required = schema.get("minProperties"), schema.get("required")
    named = len(required) if isinstance(required, list) else 0
    if isinstance(least, int | float) and least > max(1, named):
        raise GrammarError("minProperties above 1 is not supported beyond required properties")


def _complaint(error: str) -> str:
    for theirs, ours in _WAYS_OUT.items():
        error = error.replace(theirs, ours)
    lines = (line.strip() for line in _EXCERPT.sub("", error).splitlines())
    shown = " ".join(line for line in lines if line and line != "<non-verbose/>")
    return shown[:_LONGEST_COMPLAINT] or "is beyond the bounds of a grammar: simplify it"
