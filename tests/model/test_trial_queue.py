"""The order of trials beside a model: random lives, and each rule by itself."""

import random

import pytest

from tasuki.model.grammar.grammar import GrammarKind
from tasuki.model.grammar.trials.messages import Outcome, Verdict
from tasuki.model.grammar.trials.queue import (
    FULL,
    OVERDUE,
    Action,
    Answer,
    Asker,
    Kill,
    QueueBounds,
    Source,
    Start,
    TrialId,
    TrialQueue,
)

PASSED = Verdict(Outcome.PASSED)
REFUSED = Verdict(Outcome.REFUSED, "no")
BUSY = Verdict(Outcome.BUSY, "later")


def source(text: object) -> Source:
    return Source(GrammarKind.REGEX, str(text))


def started(actions: list[Action]) -> dict[str, TrialId]:
    return {each.source.text: each.trial for each in actions if isinstance(each, Start)}


def answers(actions: list[Action]) -> dict[Asker, Verdict]:
    return {each.asker: each.verdict for each in actions if isinstance(each, Answer)}


class Asks:
    """A queue with askers by number, all of connection 0."""

    def __init__(self, most_running: int = 1, **bounds: float) -> None:
        self.queue = TrialQueue(QueueBounds(most_running, **bounds))  # type: ignore[arg-type]
        self.asked = 0

    def ask(self, caller: str, text: object, now: float = 0.0) -> tuple[Asker, list[Action]]:
        asker = Asker(0, self.asked)
        self.asked += 1
        return asker, self.queue.ask(asker, caller, source(text), now)


def test_a_source_is_tried_once_for_all_who_ask_for_it() -> None:
    asks = Asks()
    ann, first = asks.ask("ann", "a")
    bob, second = asks.ask("bob", "a")
    (trial,) = started(first).values()
    assert second == []
    ended = asks.queue.ended(trial, PASSED, 0.1, 1.0)
    assert answers(ended) == {ann: PASSED, bob: PASSED}
    late, known = asks.ask("cat", "a")
    assert known == [Answer(late, PASSED)]
    assert asks.queue.is_idle


@pytest.mark.parametrize("told", [BUSY, Verdict(Outcome.UNAVAILABLE, "not here")])
def test_a_verdict_that_is_not_final_is_not_remembered(told: Verdict) -> None:
    asks = Asks()
    _, first = asks.ask("ann", "a")
    asks.queue.ended(started(first)["a"], told, 0.1, 1.0)
    assert started(asks.ask("ann", "a")[1])


def test_the_caller_that_used_least_is_next() -> None:
    asks = Asks()
    _, first = asks.ask("ann", "a0")
    for number in range(1, 4):
        asks.ask("ann", f"a{number}")
    asks.ask("bob", "b0")
    asks.ask("bob", "b1")
    order = []
    running = started(first)
    while running:
        ((text, trial),) = running.items()
        order.append(text)
        # Ann's cost a second each, bob's nothing but their starts.
        cost = 1.0 if text.startswith("a") else 0.0
        running = started(asks.queue.ended(trial, PASSED, cost, 0.0))
    assert order == ["a0", "b0", "b1", "a1", "a2", "a3"]


def test_killed_trials_count_against_the_share() -> None:
    """Ann asks and leaves at once, over and over. Bob's turn comes before her next one."""
    asks = Asks()
    first, begun = asks.ask("ann", "a0")
    assert asks.queue.leave(first, 0.0) == [Kill(started(begun)["a0"])]
    asks.ask("ann", "a1")
    asks.ask("bob", "b")
    assert list(started(asks.queue.ended(started(begun)["a0"], BUSY, 0.5, 0.0))) == ["b"]


def test_use_is_forgotten_in_time() -> None:
    asks = Asks()
    _, begun = asks.ask("ann", "a0")
    asks.queue.ended(started(begun)["a0"], PASSED, 2.0, 0.0)
    _, running = asks.ask("bob", "b0", 300.0)
    asks.ask("bob", "b1", 300.0)
    asks.ask("ann", "a1", 300.0)
    ended = asks.queue.ended(started(running)["b0"], PASSED, 0.01, 300.0)
    assert list(started(ended)) == ["a1"], "five minutes later ann has used less than bob"


def test_one_caller_runs_half_of_the_trials_at_most() -> None:
    asks = Asks(most_running=4)
    begun = [started(asks.ask("ann", number)[1]) for number in range(4)]
    assert [len(each) for each in begun] == [1, 1, 0, 0]
    assert started(asks.ask("bob", "b")[1])


def test_the_last_who_leaves_ends_a_trial_and_none_before() -> None:
    asks = Asks()
    ann, first = asks.ask("ann", "a")
    bob, _ = asks.ask("bob", "a")
    assert asks.queue.leave(ann, 0.0) == []
    assert asks.queue.leave(bob, 0.0) == [Kill(started(first)["a"])]
    assert asks.queue.leave(bob, 0.0) == []


def test_a_source_asked_for_again_while_its_child_dies_is_tried_anew() -> None:
    asks = Asks()
    ann, first = asks.ask("ann", "a")
    asks.queue.leave(ann, 0.0)
    bob, second = asks.ask("bob", "a")
    assert second == []
    again = asks.queue.ended(started(first)["a"], REFUSED, 0.1, 1.0)
    assert answers(again) == {} and list(started(again)) == ["a"]
    assert answers(asks.queue.ended(started(again)["a"], PASSED, 0.1, 2.0)) == {bob: PASSED}


def test_a_waiting_source_whose_callers_left_is_never_started() -> None:
    asks = Asks()
    _, first = asks.ask("ann", "a")
    bob, _ = asks.ask("bob", "b")
    asks.queue.leave(bob, 0.0)
    assert started(asks.queue.ended(started(first)["a"], PASSED, 0.1, 1.0)) == {}
    assert asks.queue.is_idle


def test_a_trial_over_its_patience_ends_with_a_verdict_that_is_not_kept() -> None:
    asks = Asks(patience=5.0)
    ann, first = asks.ask("ann", "a")
    assert asks.queue.overdue(5.0) == []
    assert asks.queue.overdue(5.1) == [Kill(started(first)["a"])]
    assert asks.queue.overdue(6.0) == []
    ended = asks.queue.ended(started(first)["a"], REFUSED, 0.1, 6.0)
    assert answers(ended) == {ann: OVERDUE}
    assert started(asks.ask("ann", "a", 7.0)[1])


def test_the_longest_line_gives_way_and_no_shorter_one() -> None:
    asks = Asks(most_waiting=3)
    asks.ask("run", "running")
    anns = [asks.ask("ann", f"a{number}")[0] for number in range(3)]
    _, made_room = asks.ask("bob", "b0")
    assert answers(made_room) == {anns[-1]: FULL}
    cat, refused = asks.ask("ann", "a3")
    assert answers(refused) == {cat: FULL}, "ann's own line is the longest"


def test_waiting_sources_are_bounded_in_bytes() -> None:
    asks = Asks(most_waiting_bytes=10_000)
    asks.ask("run", "running")
    asks.ask("ann", "a" * 2000)
    asker, refused = asks.ask("ann", "b" * 2000)
    assert answers(refused) == {asker: FULL}


def test_a_connection_that_ends_takes_its_asks_along() -> None:
    queue = TrialQueue(QueueBounds(1))
    begun = queue.ask(Asker(1, 0), "ann", source("a"), 0.0)
    queue.ask(Asker(1, 1), "ann", source("b"), 0.0)
    queue.ask(Asker(2, 0), "bob", source("c"), 0.0)
    assert queue.leave_all(1, 0.0) == [Kill(started(begun)["a"])]
    ended = queue.ended(started(begun)["a"], BUSY, 0.0, 0.0)
    assert answers(ended) == {} and list(started(ended)) == ["c"]


@pytest.mark.parametrize("seed", range(20))
def test_random_lives_answer_every_asker_once_and_keep_the_bounds(seed: int) -> None:
    rng = random.Random(seed)
    bounds = QueueBounds(rng.choice([1, 2, 4]), most_waiting=6, most_waiting_bytes=4000)
    queue = TrialQueue(bounds)
    waiting: set[Asker] = set()
    running: dict[TrialId, Source] = {}
    dying: set[TrialId] = set()
    now = 0.0

    def carry_out(actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(trial, started_source):
                    assert started_source not in [
                        tried for each, tried in running.items() if each not in dying
                    ], "two trials of one source"
                    running[trial] = started_source
                case Kill(trial):
                    assert trial in running
                    dying.add(trial)
                case Answer(asker, _):
                    waiting.remove(asker)
        assert len(running) == queue.running <= bounds.most_running

    for number in range(600):
        now += rng.random()
        match rng.randrange(5):
            case 0 | 1:
                asker = Asker(rng.randrange(3), number)
                waiting.add(asker)
                text = str(rng.randrange(12)) * rng.choice([1, 200])
                carry_out(queue.ask(asker, rng.choice("abc"), source(text), now))
            case 2 if waiting:
                asker = rng.choice(sorted(waiting, key=lambda each: each.number))
                waiting.remove(asker)
                carry_out(queue.leave(asker, now))
            case 3 if running:
                trial = rng.choice(sorted(running))
                del running[trial]
                dying.discard(trial)
                verdict = rng.choice([PASSED, REFUSED, BUSY])
                carry_out(queue.ended(trial, verdict, rng.random(), now))
            case 4:
                carry_out(queue.overdue(now))
                if rng.random() < 0.1:
                    gone = rng.randrange(3)
                    waiting -= {asker for asker in waiting if asker.connection == gone}
                    carry_out(queue.leave_all(gone, now))
    while running:
        trial = next(iter(running))
        del running[trial]
        dying.discard(trial)
        carry_out(queue.ended(trial, PASSED, 0.0, now))
    assert queue.is_idle and not waiting
