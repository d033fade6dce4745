"""The engine loop on its own thread: take messages, step, deliver the step's messages together."""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from tasuki.utils.signatures import EndNotice
from tasuki.utils.system import name_this_thread

from .engine import Engine
from .messages import ErrorKind, Inbox, Outbox, Rejected, RequestError, Submit
from .parallel.ranks import RankLost

log = logging.getLogger(__name__)

_WAKE = None

_LONGEST_SLEEP = 3600.0
"""Longest sleep in seconds. System calls reject times beyond the system's calendar."""

_LOOKS = 10
"""Number of looks at one unfinished step before the watchdog fails it. Looks are counted instead of
time, so a process frozen for a while does not blame a step for the gap."""


class EngineThread:
    """A thread to run the engine loop. post() may be called from any thread. deliver: called on the
    engine thread, in order, with the messages of one step, or answers given before it; never empty.
    on_failure: called with the reason at most once, on the engine thread or the watchdog's. The
    loop has died or hangs then, and answers no more. watchdog_timeout: longest seconds of a
    step."""

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[Sequence[Outbox]], None],
        on_failure: EndNotice,
        watchdog_timeout: float = math.inf,
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._on_failure = on_failure
        self._watchdog_timeout = watchdog_timeout
        self._moved: float | None = None
        """Time of the last step's end, on the monotonic clock; None while idle."""
        self._inbox: SimpleQueue[Inbox | None] = SimpleQueue()
        self._stopping = threading.Event()
        self._prepared = threading.Event()
        self._over = threading.Event()
        """An event, set when the loop has ended or was given up."""
        self._thread = threading.Thread(target=self._run, name="tasuki-engine", daemon=True)

    def start(self) -> None:
        """Start the thread. Return when the engine is ready to step, or has failed. Start the
        watchdog too, if its timeout is finite."""
        self._thread.start()
        self._prepared.wait()
        if math.isfinite(self._watchdog_timeout):
            threading.Thread(target=self._watch, name="tasuki-watchdog", daemon=True).start()

    @property
    def still_seconds(self) -> float:
        """Return the seconds since the loop last took messages, before each step; 0.0 while there
        is nothing to do. Any thread."""
        moved = self._moved
        return 0.0 if moved is None else time.monotonic() - moved

    def post(self, message: Inbox) -> None:
        self._inbox.put(message)

    def stop(self) -> None:
        """End the loop after the step in progress, and wait for this. The watchdog gives up a step
        lasting too long. Unfinished requests are dropped with the process."""
        self._stopping.set()
        self._inbox.put(_WAKE)
        self._over.wait()

    def _run(self) -> None:
        name_this_thread()
        try:
            self._engine.prepare()
            self._prepared.set()
            self._loop()
            self._engine.close()
        except RankLost as error:
            # This is no bug of this process, and the place of the error explains nothing.
            log.error("the engine loop ends: %s", error)
            self._on_failure(f"{error}; restart this node")
        except Exception as error:
            log.exception("the engine loop died")
            self._on_failure(f"the engine loop died: {error!r}; restart this node")
        finally:
            self._prepared.set()
            self._over.set()

    def _watch(self) -> None:
        """Watch until the loop is over or a step takes too long."""
        seen, looks = None, 0
        while looks < _LOOKS:
            if self._over.wait(self._watchdog_timeout / _LOOKS):
                return
            moved = self._moved
            looks = looks + 1 if moved is not None and moved == seen else 0
            seen = moved
        reason = f"the engine has ended no step for {self._watchdog_timeout:g} s"
        log.critical("%s (--watchdog-timeout)", reason)
        self._on_failure(f"{reason}; restart this node")
        self._over.set()

    def _loop(self) -> None:
        worked = False
        while not self._stopping.is_set():
            idle = 0.0 if worked else self._engine.idle_seconds
            wait = None if idle is None else min(idle, _LONGEST_SLEEP)
            self._take_messages(wait)
            while (left := self._engine.planning_wait) and not self._stopping.is_set():
                self._engine.gather()
                self._deliver_all()
                self._take_messages(left)
            worked = self._engine.step()
            self._deliver_all()
            if not worked:
                self._moved = None

    def _take_messages(self, wait: float | None) -> None:
        """Handle all messages in the inbox. If there are none, wait up to `wait` seconds for the
        first one; None: wait without a limit. Answers to queries leave before any forward."""
        messages = self._messages(wait)
        self._moved = time.monotonic()
        for message in messages:
            self._handle(message)
        self._deliver_all()

    def _deliver_all(self) -> None:
        made = self._engine.take_outbox()
        if made:
            self._deliver(made)

    def _handle(self, message: Inbox) -> None:
        """Handle one message. A bad message ends one request, not the loop."""
        try:
            self._engine.handle(message)
        except Exception as error:
            log.exception("a message was dropped: %s", type(message).__name__)
            if isinstance(message, Submit):
                failure = RequestError(ErrorKind.INTERNAL, f"the engine refused it: {error!r}")
                self._deliver([Rejected(name, failure) for name in message.answer_ids])

    def _messages(self, wait: float | None) -> list[Inbox]:
        """Return all waiting messages. If there are none, sleep until one comes, at most `wait`
        seconds (None: for ever)."""
        messages: list[Inbox] = []
        try:
            message = self._inbox.get(wait != 0, wait)
            while True:
                if message is not _WAKE:
                    messages.append(message)
                message = self._inbox.get_nowait()
        except Empty:
            return messages
