"""A follower's part of the tiers: it copies what the leader says, and says how each copy ended.

Owns a copier a tier, and one thread that sends ends. Thread rule: handle() is of the thread that
runs plans, so that a copy begins behind those that came before it.
"""

import threading
import time
from collections.abc import Callable, Sequence

from tasuki.engine.parallel import messages as r
from tasuki.engine.tiers.copy_thread import CopyThread
from tasuki.utils.os_threads import name_this_thread

_LOOK_SECONDS = 0.002
"""Between looks at several copiers for what has ended, while something is under way."""
_CLOSE_SECONDS = 5.0


class FollowerTiers:
    def __init__(self, copiers: Sequence[CopyThread], send: Callable[[r.CopyEnded], None]) -> None:
        """copiers: by tier. send: to the leader; raises OSError or a LeaderGone once it is gone."""
        self._copiers = copiers
        self._send = send
        self._under_way = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._report, name="tasuki-ends", daemon=True)
        self._thread.start()

    def handle(self, message: r.TierMessage) -> None:
        copier = self._copiers[message.tier]
        match message:
            case r.BeginCopy(job=job):
                copier.begin(job)
                with self._changed:
                    self._under_way += 1
                    self._changed.notify()
            case r.CancelCopy(transfer=transfer):
                copier.cancel(transfer)
            case r.EmptyTier():
                copier.empty()

    def close(self) -> None:
        """End what is under way, within seconds a tier."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        for copier in self._copiers:
            copier.close(_CLOSE_SECONDS)

    def _report(self) -> None:
        name_this_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._under_way > 0 or self._closing)
                if self._closing:
                    return
            ended = [
                r.CopyEnded(tier, transfer, end)
                for tier, copier in enumerate(self._copiers)
                for transfer, end in copier.take_ended()
            ]
            for message in ended:
                try:
                    self._send(message)
                except Exception:
                    return  # The leader is gone: who reads its socket ends this process.
            with self._changed:
                self._under_way -= len(ended)
            if not ended:
                time.sleep(_LOOK_SECONDS)
