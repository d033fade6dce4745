"""States behind pictures: question after question about one picture does its image work once."""

from collections.abc import Sequence

import pytest

from tasuki.engine.scheduling.checkpoints import plan_checkpoints
from tasuki.model.vision.prompt_positions import PictureRun
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.engines import Lone, prompt, submit
from tests.harness.tiny_pictures import Prompt, assert_idle, encoder, seeing_engine
from tests.harness.trees import keep, take, text, tree_of

ROWS, COLUMNS = 9, 11
HEAD = 40
BEHIND = HEAD + 1 + ROWS * COLUMNS + 1
"""Tokens up to the picture's closing token."""


def words(count: int, seed: int) -> list[int]:
    return [token % 120 for token in prompt(count, seed)]


def question(count: int, seed: int, *, pictures: str = "a") -> Prompt:
    made = Prompt().text(words(HEAD, 0))
    for name in pictures:
        made.picture(name, ROWS, COLUMNS)
    return made.text(words(count, seed))


def ask(engine: Lone, made: Prompt, name: str, **changes: object) -> tuple[int, int]:
    """Ask a question with an empty store of rows. Return its cached tokens, and its encodes."""
    encoder(engine).store.clear()
    before = encoder(engine).counts.encoded
    pictures = tuple(made.pictures)
    found = engine.ask(name, made.tokens, 8, pictures=pictures, **changes)
    oracle = seeing_engine(prefill_chunk_tokens=4096)
    assert found == oracle.ask(name, made.tokens, 8, pictures=pictures)
    assert_idle(engine)
    return engine.hit(name).usable_tokens, encoder(engine).counts.encoded - before


def test_a_second_short_question_needs_no_rows() -> None:
    engine = seeing_engine()
    assert ask(engine, question(9, 1), "first") == (0, 1)
    assert ask(engine, question(30, 2), "second") == (BEHIND, 0)
    # The page boundary behind the picture is inside this question.
    assert ask(engine, question(60, 3), "third") == (BEHIND, 0)
    assert engine.hit("second").checkpoint_source == "prompt_end"


def test_a_third_long_question_needs_no_rows() -> None:
    engine = seeing_engine()
    assert ask(engine, question(200, 1), "first") == (0, 1)
    assert ask(engine, question(200, 2), "second") == (0, 1)
    assert ask(engine, question(9, 3), "third") == (BEHIND, 0)
    assert engine.hit("third").checkpoint_source == "branch"


def test_a_long_question_with_its_message_end_kept_needs_no_second_encode() -> None:
    engine = seeing_engine()
    first = question(200, 1)
    ask(engine, first, "first", message_end=len(first.tokens) - 8)
    assert ask(engine, question(200, 2), "second") == (BEHIND, 0)
    assert ask(engine, first, "repeat") == (len(first.tokens) - 8, 0)


def test_a_document_is_kept_behind_its_last_picture() -> None:
    engine = seeing_engine()
    assert ask(engine, question(9, 1, pictures="abc"), "first") == (0, 3)
    cached, encoded = ask(engine, question(9, 2, pictures="abc"), "second")
    assert encoded == 0 and cached == HEAD + 3 * (BEHIND - HEAD)
    # Fewer of its pictures end between two states.
    assert ask(engine, question(9, 3, pictures="ab"), "fewer")[1] == 2
    assert ask(engine, question(9, 4, pictures="ab"), "fewer again")[1] == 0


def test_a_mark_right_behind_a_picture_is_kept_there() -> None:
    engine = seeing_engine()
    made = question(200, 1)
    ask(engine, made, "first", marks=(BEHIND,))
    assert ask(engine, question(200, 2), "second") == (BEHIND, 0)
    assert engine.hit("second").checkpoint_source == "mark"


@pytest.mark.parametrize("length", [9, 200])
def test_questions_at_once_wait_for_one_encode_and_one_prefill(length: int) -> None:
    engine = seeing_engine(prefill_chunk_tokens=64)
    made = [question(length, seed) for seed in range(1, 6)]
    for seed, each in enumerate(made):
        engine.post(submit(f"q{seed}", each.tokens, 8, pictures=tuple(each.pictures)))
    engine.run()
    assert encoder(engine).counts.encoded == 1
    hits = sorted(engine.hit(f"q{seed}").usable_tokens for seed in range(len(made)))
    assert hits == [0, *[BEHIND] * (len(made) - 1)]
    for seed, each in enumerate(made):
        oracle = seeing_engine(prefill_chunk_tokens=4096)
        expected = oracle.ask("r", each.tokens, 8, pictures=tuple(each.pictures))
        assert engine.tokens(f"q{seed}") == expected
    engine.assert_at_rest()


@pytest.mark.parametrize("kept", [True, False])
def test_a_turn_again_resumes_inside_its_picture(kept: bool) -> None:
    """A chat that goes on keeps its prompt's end inside the picture. The whole picture is encoded
    again for its last rows, unless they are kept."""
    engine = seeing_engine()
    first = words(100, 1)
    turn = Prompt().text(first).text(engine.ask("first", first, 8))
    turn.text(words(9, 2)).picture("a", ROWS, COLUMNS).text(words(9, 3))
    (picture,) = turn.pictures
    assert ask(engine, turn, "turn") == (len(first) + 7, 1)
    if kept:
        assert len(engine.ask("warm", turn.tokens, 8, pictures=tuple(turn.pictures))) == 8
        assert encoder(engine).counts.encoded == 1 and encoder(engine).counts.kept == 1
    else:
        cached, encoded = ask(engine, turn, "again")
        assert picture.start < cached < picture.run.end and encoded == 1
    assert engine.tokens("warm" if kept else "again") == engine.tokens("turn")


def planned(tokens: int, *runs: tuple[int, int], going_on: bool = False) -> Sequence[int]:
    tree = tree_of()
    if going_on:
        keep(tree, text(tokens)[:11], 10)
    allocation = take(tree, text(tokens))
    cached = allocation.cached_tokens
    assert cached == (10 if going_on else 0)
    places = [PictureRun(start, 1, count) for start, count in runs]
    found = plan_checkpoints(tokens, cached, allocation.match, (), runs=places)
    return [each.position for each in found]


def test_a_state_behind_a_picture_takes_the_place_of_another() -> None:
    in_picture = (100, 200)
    assert planned(310, in_picture) == [64, 301]
    assert planned(310, in_picture, going_on=True) == [64, 256]
    # The page boundary behind the picture is not kept.
    assert planned(330, in_picture) == [301]
    assert planned(301 + PAGE_TOKENS + 1, in_picture) == [320]
    assert planned(301, in_picture) == [64, 256]
    assert planned(330) == [320]
