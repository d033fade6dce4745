"""Grammars over a vocabulary of single bytes, and the texts they accept."""

from functools import cache
from typing import Protocol

from tasuki.model.grammar.constraint import allows
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.vocabulary import Vocabulary

END = 256
"""Id of the token ending an answer."""


class _Written(Protocol):
    """A grammar's source text, as a request has it or as the engine receives it."""

    @property
    def kind(self) -> GrammarKind: ...

    @property
    def source(self) -> str: ...


@cache
def byte_compiler() -> GrammarCompiler:
    return GrammarCompiler(Vocabulary((*(bytes([byte]) for byte in range(256)), b""), (END,)))


def follows(grammar: _Written | None, text: str) -> bool:
    """Return True if the text, after its thinking, is a whole answer by the grammar. Raises
    GrammarError."""
    assert grammar is not None
    constraint = byte_compiler().constraint(Grammar(grammar.kind, grammar.source), ())
    tokens = [*text.encode()]
    if constraint.allowed(tokens) < len(tokens):
        return False
    for token in tokens:
        constraint.append(token)
    mask = constraint.mask()
    return mask is not None and allows(mask, END)


def tagged_call(name: str, /, **texts: str) -> str:
    """Return the text of a tool call between tags. texts: texts of its parameters by name."""
    inner = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"
