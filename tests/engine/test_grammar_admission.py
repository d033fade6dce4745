"""A request waits for its grammar without delaying others. One with a grammar that cannot be
compiled is rejected with the reason."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tasuki.engine import messages as m
from tasuki.model.grammar.constraint import Constraint
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engines import (
    LETTERS,
    GrammarsAtOnce,
    Lone,
    prompt,
    submit,
    tiny_engine,
    tiny_parts,
)

DIGITS = Grammar(GrammarKind.REGEX, "[0-9]{3}")
NEW = 6


def engine_with(vocabulary: Vocabulary | None) -> Lone:
    return tiny_engine(parts=replace(tiny_parts(), grammars=GrammarCompiler(vocabulary)))


def asking(name: str, grammar: Grammar) -> m.Submit:
    sampling = SamplingParams(max_new_tokens=NEW, grammar=grammar, stop_token_ids=(127,))
    return replace(submit(name, prompt(20), NEW, sampling=sampling), caller=name)


def test_a_request_waits_for_its_grammar_and_others_go_on() -> None:
    engine = engine_with(LETTERS)
    engine.post(asking("digits", DIGITS))
    engine.post(submit("plain", prompt(20), NEW))
    engine.run()
    assert len(engine.tokens("plain")) == NEW
    engine.parts.grammars.wait()
    engine.run()
    text = bytes(engine.tokens("digits")[:3])
    assert text.isdigit() and engine.tokens("digits")[3:] == [127]
    engine.assert_at_rest()


def test_a_loop_that_has_nothing_else_to_do_looks_again_soon() -> None:
    engine = engine_with(LETTERS)
    assert engine.engine.idle_seconds is None
    grammars = engine.parts.grammars
    assert not grammars.ready(DIGITS)
    assert engine.engine.idle_seconds in (None, 0.002)
    grammars.wait()
    assert engine.engine.idle_seconds is None
    assert grammars.ready(DIGITS)


def test_a_grammar_that_cannot_be_compiled_ends_its_request_alone() -> None:
    engine = engine_with(LETTERS)
    engine.post(asking("bad", Grammar(GrammarKind.REGEX, "(a")))
    engine.post(asking("digits", DIGITS))
    engine.run()
    engine.parts.grammars.wait()
    engine.run()
    error = engine.rejected("bad")
    assert error.kind is m.ErrorKind.INVALID
    assert error.message.startswith("grammar: ") and "unclosed group" in error.message
    assert bytes(engine.tokens("digits")[:3]).isdigit()
    engine.assert_at_rest()


def test_grammars_whose_requests_left_are_not_held() -> None:
    """However many grammars are requested and left, none is held for the life of the node."""
    engine = engine_with(LETTERS)
    grammars = engine.parts.grammars
    for number in range(1, 6):
        engine.post(asking("r", Grammar(GrammarKind.REGEX, f"[0-9]{{{number}}}")))
        engine.run()
        engine.post(m.Abort("r"))
        engine.run()
    assert grammars.held == 0
    engine.assert_at_rest()


@pytest.mark.parametrize(
    ("grammar", "complaint"),
    [
        (DIGITS, "grammar: grammars need the text of each token"),
        (replace(DIGITS, closing=128), "grammar names token 128, which is outside"),
    ],
)
def test_what_an_engine_cannot_serve_is_refused(grammar: Grammar, complaint: str) -> None:
    engine = engine_with(None)
    engine.post(asking("r", grammar))
    engine.run()
    assert engine.rejected("r").message.startswith(complaint)


class _GivesUp(GrammarsAtOnce):
    """Grammars with matchers that fail after the third token, like a step beyond a bound."""

    def constraint(self, grammar: Grammar, output: Iterable[int]) -> Constraint:
        made = super().constraint(grammar, ())
        append, said = made.append, []

        def fails(token: int) -> None:
            said.append(token)
            append(token if len(said) < 3 else 1)

        made.append = fails  # type: ignore[method-assign]
        for token in output:
            made.append(token)
        return made


def test_an_answer_that_its_grammar_gave_up_was_cut_off() -> None:
    """It ends with an end token, and is no text of the grammar."""
    parts = replace(tiny_parts(), grammars=_GivesUp(LETTERS))
    parts = replace(parts, model_config=replace(parts.model_config, eos_ids=LETTERS.eos_ids))
    engine = tiny_engine(parts=parts)
    engine.post(asking("r", replace(DIGITS, source="[0-9]{5}")))
    engine.run()
    assert bytes(engine.tokens("r")[:3]).isdigit() and engine.tokens("r")[3:] == [127]
    (finished,) = engine.all_said(m.Finished)
    assert finished.reason is m.FinishReason.LENGTH
