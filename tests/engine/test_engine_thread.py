"""The thread of the engine loop: its work before the first message, and its report when it dies."""

import threading
import time
from collections.abc import Callable, Sequence

from tasuki.engine import messages as m
from tasuki.engine.thread import EngineThread
from tests.harness.waiting import HANG_SECONDS, until


class Idle:
    """An engine without work. It records the calling thread."""

    idle_seconds: float | None = None
    planning_wait = 0.0

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.answers: list[m.Outbox] = []
        self.broken = False

    def _note(self, call: str) -> None:
        self.calls.append((call, threading.current_thread().name))

    def prepare(self) -> None:
        self._note("prepare")
        if self.broken:
            raise RuntimeError("no plan")

    def step(self) -> bool:
        self._note("step")
        return False

    def close(self) -> None:
        self._note("close")

    def take_outbox(self) -> list[m.Outbox]:
        answers, self.answers = self.answers, []
        return answers

    def handle(self, message: m.Inbox) -> None:
        self._note("handle")
        self.answers.append(m.FlushReply(1, 0))


def thread_of(
    engine: Idle,
    deliver: Callable[[Sequence[m.Outbox]], object] = lambda said: None,
    died: Callable[[str], object] = lambda reason: None,
) -> EngineThread:
    return EngineThread(engine, deliver, died)  # type: ignore[arg-type]


def test_it_is_prepared_on_its_own_thread_before_start_returns() -> None:
    engine = Idle()
    thread = thread_of(engine)
    thread.post(m.FlushCache(1))
    thread.start()
    assert engine.calls[0] == ("prepare", "tasuki-engine")
    thread.stop()
    calls = [call for call, _ in engine.calls]
    assert calls.index("prepare") < calls.index("handle") < calls.index("step")


def test_a_question_is_answered_before_the_next_step() -> None:
    engine = Idle()
    thread = thread_of(engine, lambda said: engine.calls.append(("told", "")))
    thread.post(m.FlushCache(1))
    thread.start()
    thread.stop()
    calls = [call for call, _ in engine.calls]
    assert calls[calls.index("handle") :][:3] == ["handle", "told", "step"]


def test_an_engine_that_is_idle_for_longer_than_any_calendar_is_asked_all_the_same() -> None:
    engine, died = Idle(), list[str]()
    engine.idle_seconds = 1e297
    thread = thread_of(engine, died=died.append)
    thread.start()
    thread.post(m.FlushCache(1))
    until(lambda: bool(died) or ("handle", "tasuki-engine") in engine.calls, "not handled")
    thread.stop()
    assert not died


def test_one_that_cannot_be_prepared_says_so_and_lets_its_starter_go() -> None:
    engine = Idle()
    engine.broken = True
    died: list[str] = []
    thread = thread_of(engine, died=died.append)
    thread.start()
    thread.stop()
    assert len(died) == 1 and "no plan" in died[0]
    assert [call for call, _ in engine.calls] == ["prepare"]


class Stuck(Idle):
    """An engine whose first work lasts until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.stepping, self.go_on = threading.Event(), threading.Event()
        self._work = False

    def handle(self, message: m.Inbox) -> None:
        self._work = True

    def step(self) -> bool:
        worked, self._work = self._work, False
        if worked:
            self.stepping.set()
            self.go_on.wait(HANG_SECONDS)
        return worked


def test_it_stands_while_a_step_lasts_and_not_while_there_is_nothing_to_do() -> None:
    engine = Stuck()
    thread = thread_of(engine)
    thread.start()
    until(lambda: thread.still_seconds == 0.0, "it stands though nothing is to be done")
    thread.post(m.FlushCache(1))
    assert engine.stepping.wait(HANG_SECONDS)
    time.sleep(0.05)
    assert thread.still_seconds >= 0.05
    engine.go_on.set()
    until(lambda: thread.still_seconds == 0.0, "it stands though nothing is to be done")
    thread.stop()


def watched(engine: Idle, reasons: list[str], timeout: float) -> EngineThread:
    return EngineThread(
        engine,  # type: ignore[arg-type]
        lambda made: None,
        reasons.append,
        timeout,
    )


def test_a_step_that_does_not_end_is_reported_once_and_keeps_nobody_from_stopping() -> None:
    engine, reasons = Stuck(), list[str]()
    thread = watched(engine, reasons, 0.2)
    thread.start()
    thread.post(m.FlushCache(1))
    until(lambda: bool(reasons), "not reported")
    thread.stop()
    assert reasons == ["the engine has ended no step for 0.2 s; restart this node"]
    engine.go_on.set()


def test_an_engine_with_nothing_to_do_is_not_judged() -> None:
    reasons = list[str]()
    # Much longer than a busy machine delays such a thread's next check.
    thread = watched(Idle(), reasons, 0.3)
    thread.start()
    time.sleep(0.6)
    thread.stop()
    assert not reasons
