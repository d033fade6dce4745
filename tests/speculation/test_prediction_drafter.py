"""Proposals from a prediction, and the part found of an answer that differs from it."""

import numpy as np
import pytest

from tasuki.engine.speculation.speculation import PredictionDrafter
from tests.harness.engines import prompt

ANSWER = prompt(60, seed=1)


def verified(prediction: list[int], answer: list[int], most: int) -> tuple[int, int, int]:
    """Return (forwards, drafts, accepted) of an answer whose first token is known."""
    drafter = PredictionDrafter(np.array(prediction, dtype=np.int32))
    output, forwards, drafted, accepted = answer[:1], 0, 0, 0
    while len(output) < len(answer):
        drafts = drafter.propose(output, min(most, len(answer) - len(output) - 1))
        held = 0
        while held < len(drafts) and drafts[held] == answer[len(output) + held]:
            held += 1
        output = answer[: len(output) + held + 1]
        forwards, drafted, accepted = forwards + 1, drafted + len(drafts), accepted + held
    return forwards, drafted, accepted


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7])
def test_a_prediction_that_holds_is_accepted_whole(most: int) -> None:
    forwards, drafted, accepted = verified(ANSWER, ANSWER, most)
    assert drafted == accepted
    assert forwards == -(-(len(ANSWER) - 1) // (most + 1))


@pytest.mark.parametrize("place", [1, 2, 17, 40, 58])
def test_another_token_in_one_place_costs_one_step(place: int) -> None:
    prediction = list(ANSWER)
    prediction[place] += 1
    forwards, _, accepted = verified(prediction, ANSWER, 3)
    assert accepted >= len(ANSWER) - 1 - forwards
    assert forwards <= 16


@pytest.mark.parametrize("length", [1, 3, 12])
def test_what_is_new_or_gone_is_passed_over(length: int) -> None:
    for prediction in (
        ANSWER[:30] + ANSWER[30 + length :],
        ANSWER[:30] + prompt(length, seed=2) + ANSWER[30:],
    ):
        forwards, drafted, accepted = verified(prediction, ANSWER, 3)
        # A lost place is found after four tokens, and nothing is proposed meanwhile.
        assert forwards <= 15 + length + 6
        assert drafted - accepted <= 9


@pytest.mark.parametrize("length", [20, 400, 5000])
def test_an_answer_that_begins_with_reasoning_is_found_behind_it(length: int) -> None:
    """The length of the reasoning does not matter, because the lost place stays the same."""
    thought = [token + 200 for token in prompt(length, seed=5)]
    forwards, drafted, accepted = verified(ANSWER, thought + ANSWER, 3)
    assert accepted >= 40
    assert drafted - accepted <= 4
    assert forwards <= length + 20


def test_of_another_text_one_step_is_lost() -> None:
    _, drafted, accepted = verified(prompt(60, seed=3), [token + 200 for token in ANSWER], 4)
    assert (drafted, accepted) == (4, 0)


def test_a_text_of_one_token_again_and_again_keeps_its_place() -> None:
    answer = [5] * 40
    prediction = list(answer)
    prediction[7] = 6
    assert verified(prediction, answer, 3)[0] <= 11


@pytest.mark.parametrize("prediction", [[], [1], [1, 2, 3]])
def test_a_short_prediction_ends(prediction: list[int]) -> None:
    drafter = PredictionDrafter(np.array(prediction, dtype=np.int32))
    assert drafter.propose([9, 9, 9, 9, 9, 9], 4) == []


def test_a_place_is_looked_for_nearby_only() -> None:
    """A step of an answer far from its place stays short for a prediction of any length."""
    far = prompt(5000, seed=4)
    assert verified(ANSWER[:10] + far[:1000] + ANSWER[10:], ANSWER, 3)[2] > 25
    assert verified(ANSWER[:10] + far + ANSWER[10:], ANSWER, 3)[2] < 15


@pytest.mark.parametrize("seen", [1, 3, 8, 30])
def test_who_is_asked_seldom_finds_the_place_that_every_token_shows(seen: int) -> None:
    """A drafter only watched beside steps without drafts is called in this way."""
    answer = [*ANSWER[:10], 300, 301, 302, *ANSWER[10:]]
    often, seldom = (PredictionDrafter(np.array(ANSWER, dtype=np.int32)) for _ in range(2))
    for length in range(len(answer) - 3):
        often.propose(answer[:length], 3)
        if length % seen == 0:
            seldom.propose(answer[:length], 3)
    answered = answer[:-3]
    assert often.propose(answered, 3) == seldom.propose(answered, 3) == answer[-3:]
