"""Thinking budgets: the length of any thought, and whole characters at its end."""

from random import Random

import pytest

from tasuki.model.grammar.constraint import Mask, allows
from tasuki.model.grammar.vocabulary import UnfinishedTokens
from tasuki.model.ops.sampling.budgeted_thought import BudgetedThought
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.thinking_budget import MAX_CLOSING_TOKENS, ThinkingBudget

LETTERS = "aé中🙂ß語"
END, OPENING, NEWLINE = 256, 257, 10


def vocabulary(rng: Random) -> list[bytes]:
    """Return every byte, the two tags, and pieces of text that begin and end anywhere in a
    character."""
    text = "".join(rng.choices(LETTERS, k=400)).encode()
    cuts = [(start, start + rng.randrange(1, 7)) for start in rng.choices(range(900), k=60)]
    pieces = {text[start:stop] for start, stop in cuts} - {b""}
    return [*(bytes([byte]) for byte in range(256)), b"", b"", *sorted(pieces)]


def masked(mask: Mask | None, vocab: int) -> set[int]:
    """Return the tokens of the mask."""
    return {token for token in range(vocab) if mask is None or allows(mask, token)}


def test_what_a_tokens_last_character_lacks_is_what_completes_it() -> None:
    for character in LETTERS + "\U0010ffff߿":
        encoded = character.encode()
        for cut in range(1, len(encoded)):
            text = b"ab" + encoded[:cut]
            unfinished = UnfinishedTokens.of([text, b"a", encoded, encoded[1:]])
            lacks = len(encoded) - cut
            kept = [masked(unfinished.finished_by(count), 4) for count in range(5)]
            assert kept == [{1, 2, 3} | ({0} if lacks <= count else set()) for count in range(5)]


@pytest.mark.parametrize("seed", range(20))
def test_no_thought_of_whole_characters_is_closed_inside_one(seed: int) -> None:
    """The model completes each character it begins, byte by byte if needed, and otherwise chooses
    at random."""
    rng = Random(seed)
    tokens = vocabulary(rng)
    unfinished = UnfinishedTokens.of(tokens)
    for most in range(12):
        thought = BudgetedThought(ThinkingBudget(most, (NEWLINE, END), END), unfinished, ())
        text = b""
        drawn = 0
        while thought.forced is None:
            kept = masked(thought.mask, len(tokens))
            fits = [
                token
                for token, piece in enumerate(tokens)
                if piece and token in kept and _begins_text(text + piece)
            ]
            token = rng.choice(fits)
            thought.append(token)
            text += tokens[token]
            drawn += 1
        assert drawn == most
        text.decode()


def _begins_text(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


@pytest.mark.parametrize("opening", [None, OPENING])
def test_state_depends_on_the_tokens_alone_and_forces_behind_so_many(opening: int | None) -> None:
    rng = Random(3)
    for _ in range(500):
        budget = ThinkingBudget(rng.randrange(8), (NEWLINE, END, NEWLINE), END, opening)
        output: list[int] = []
        forced: list[int] = []
        step = BudgetedThought(budget, None, ())
        for _ in range(20):
            again = BudgetedThought(budget, None, output)
            assert again.forced == step.forced
            if step.forced is not None:
                forced.append(len(output))
                assert len(output) in budget.rules
            token = rng.choice([5, 6, END, OPENING]) if step.forced is None else step.forced
            output.append(token)
            step.append(token)
        thought = output if opening is None else output[1:]
        begins = 0 if opening is None else 1
        if (opening is not None and output[0] != opening) or END in thought[: budget.most]:
            assert not forced
        else:
            first = begins + budget.most
            assert forced == [first, first + 1, first + 2]
            assert output[first : first + 3] == list(budget.closing)


@pytest.mark.parametrize(
    "budget",
    [
        {"most": -1, "closing": (1,), "tag": 1},
        {"most": 2**31, "closing": (1,), "tag": 1},
        {"most": 1, "closing": (), "tag": 1},
        {"most": 1, "closing": (1,) * (MAX_CLOSING_TOKENS + 1), "tag": 1},
        {"most": 1, "closing": (1, 2), "tag": 3},
    ],
)
def test_budget_that_cannot_be_kept_is_refused(budget: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"^thinking must"):
        ThinkingBudget(**budget)  # type: ignore[arg-type]


def test_budget_adjusts_few_draws_and_depends_on_the_output() -> None:
    params = SamplingParams(thinking=ThinkingBudget(1000, (NEWLINE, END), END))
    assert params.adjusts and params.follows_output and not params.adjusts_every_draw
    assert params.thinking is not None and params.thinking.rules == range(997, 1002)
