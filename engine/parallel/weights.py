"""Updates of the weights of a model on several ranks: each stages its own slices.

RankedStaging, on the leader: all ranks stage, or none keeps anything. FollowerWeights: a follower's
half. A commit travels between plans, so each rank runs each plan with one version. Thread rules:
stage() is one thread's at a time, beside the plans; commit() and handle() belong to the threads of
the plans. Invariant: no rank commits before all have staged.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tasuki.engine.updates.staging import StagedWeights, Staging, UpdateRefused
from tasuki.model.weights.tensor_tree import WeightsDigests
from tasuki.utils.program import line_of
from tasuki.utils.system import name_this_thread

from . import messages as r
from .ranks import Ranks
from .tiers import SendToLeader


@dataclass(frozen=True)
class RankedWeights:
    """Staged weights of all ranks. own: the leader's."""

    own: StagedWeights
    ranks: Ranks

    @property
    def digests(self) -> WeightsDigests:
        return self.own.digests

    def commit(self) -> None:
        """Commit on every rank. REQUIRES: no forward is in flight. Raises RankLost."""
        self.ranks.post(r.CommitWeights())
        self.own.commit()


@dataclass(frozen=True)
class RankedStaging:
    """`Stager` of a leader. own: of its own part."""

    own: Staging
    ranks: Ranks

    def stage(self, folder: str) -> RankedWeights:
        """Stage the folder's weights on all ranks at the same time. Raises the errors of
        Staging.stage(), RankLost; then no rank keeps anything."""
        self.ranks.stage(r.StageWeights(folder))
        try:
            try:
                own = self.own.stage(folder)
            finally:
                refused = self.ranks.staged()
            if refused:
                raise UpdateRefused(refused)
        except Exception:
            self.ranks.stage(r.DropWeights())
            raise
        return RankedWeights(own, self.ranks)


class FollowerWeights:
    """A follower's staged weights. Owns those staged last, until their commit."""

    def __init__(self, staging: Callable[[], Staging], send: SendToLeader) -> None:
        """staging: returns this rank's stager. send: sends a message to the leader."""
        self._staging = staging
        self._send = send
        self._staged: StagedWeights | None = None

    def handle(self, message: r.WeightsMessage) -> None:
        """Begin to stage on a thread, or drop or commit the staged weights. REQUIRES: a commit
        comes after the staging of all ranks."""
        match message:
            case r.StageWeights(folder):
                self._staged = None
                work = threading.Thread(
                    target=self._stage, args=(folder,), name="tasuki-update", daemon=True
                )
                work.start()
            case r.DropWeights():
                self._staged = None
            case r.CommitWeights():
                assert self._staged is not None, "a commit of weights that were not staged"
                self._staged.commit()
                self._staged = None

    def _stage(self, folder: str) -> None:
        name_this_thread()
        try:
            self._staged = self._staging().stage(folder)
        except Exception as error:
            self._send(r.WeightsStaged(line_of(error)))
        else:
            self._send(r.WeightsStaged())
