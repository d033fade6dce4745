"""Updates of an engine's weights, from a request to its answer: stage, pause, commit, resume.

Owns the update in progress, its thread, the pause, and the version of the weights. Thread rule: the
engine loop's; staging runs on a thread beside it, while answers go on.

Invariants:

1. The weights change only while a pause is at rest and no copy between tiers is in progress. They
   change with the names of states (weights_namespace.py), in one call between two steps. So no
   state of one version is ever found under another.
2. A failed update changes nothing, and its own pause ends.
3. A pair's older links are closed before the pause ends, so no transfer leads from one version to
   another.
4. A request with KV of several versions gives none of it to the tree.
5. Each update and each pause is answered once. One update is in progress at a time.
"""

import logging
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread

from tasuki.engine import messages as m
from tasuki.engine.config import Role
from tasuki.engine.forward_stream import PlanStream
from tasuki.engine.messages import START_VERSION, PauseMode
from tasuki.engine.request import Active, Prefilling, Request
from tasuki.engine.roles.base import Handover
from tasuki.engine.scheduling.scheduler import Scheduler
from tasuki.engine.tiers.lower_tiers import LowerTiers
from tasuki.engine.updates.pause import Pause
from tasuki.engine.updates.staging import Staged, Stager
from tasuki.model.weights.tensor_tree import WeightsDigests
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.pycache.weights_namespace import WeightsNamespace
from tasuki.utils.system import name_this_thread

log = logging.getLogger(__name__)

UpdateInbox = m.PauseAnswers | m.ResumeAnswers | m.UpdateWeights | m.LinksClosed

_MODES = {Role.PREFILL: frozenset({PauseMode.WAIT})}
"""Modes in which an engine can pause, by its role; all in roles without an entry."""


@dataclass
class _Update:
    """An update in progress. staging: its weights, once they are checked. requests: number of
    requests at the start of its pause. answer: sent once the links are closed; None before the
    commit."""

    asked: m.UpdateWeights
    staging: Future[Staged]
    requests: int = 0
    answer: m.WeightsUpdated | None = None


class Updates:
    def __init__(
        self,
        cache: HybridPrefixCache,
        plans: PlanStream,
        scheduler: Scheduler,
        handover: Handover,
        tiers: LowerTiers | None,
        emit: m.Emit,
        staging: Stager | str,
        role: Role = Role.FUSED,
    ) -> None:
        """role: the engine's. staging: stager of new weights; a text: the reason to refuse every
        update."""
        self._cache = cache
        self._plans = plans
        self._handover = handover
        self._tiers = tiers
        self._emit = emit
        self._staging = staging
        self._role = role
        self._pause = Pause(scheduler, handover, _MODES.get(role, frozenset(PauseMode)))
        self._asked: PauseMode | None = None
        """The mode of a client's pause; None: a pause in force is an update's own."""
        self._unanswered: list[int] = []
        """Queries for a pause that is not at rest yet."""
        self._update: _Update | None = None
        self.version = START_VERSION

    @property
    def is_paused(self) -> bool:
        """Return True while a pause is in force."""
        return self._pause.mode is not None

    @property
    def is_busy(self) -> bool:
        """Return True while an update or a pause is still to be answered."""
        return self._update is not None or bool(self._unanswered)

    def handle(self, message: UpdateInbox) -> None:
        match message:
            case m.PauseAnswers(query_id, mode):
                self._asked = mode
                self._pause.begin(mode)
                self._unanswered.append(query_id)
            case m.ResumeAnswers(query_id):
                self._asked = None
                self._answer_pauses()
                if self._update is None or not self._update.staging.done():
                    self._pause.end()
                self._emit(m.AnswersPaused(query_id, self._pause.requests))
            case m.UpdateWeights():
                self._begin(message)
            case m.LinksClosed():
                if self._update is not None and self._update.answer is not None:
                    self._over(self._update, self._update.answer)

    def _begin(self, asked: m.UpdateWeights) -> None:
        if isinstance(self._staging, str):
            self._refuse(asked, m.ErrorKind.INVALID, self._staging)
        elif self._update is not None:
            reason = "an update is in progress: ask again when it is answered"
            self._refuse(asked, m.ErrorKind.OVERLOADED, reason)
        else:
            staged: Future[Staged] = Future()
            self._update = _Update(asked, staged)
            work = (self._staging, asked.folder, staged)
            Thread(target=_stage, args=work, name="tasuki-update", daemon=True).start()

    def _refuse(self, asked: m.UpdateWeights, kind: m.ErrorKind, reason: str) -> None:
        self._emit(self._refusal(asked, kind, reason))

    def _refusal(self, asked: m.UpdateWeights, kind: m.ErrorKind, reason: str) -> m.WeightsUpdated:
        error = m.RequestError(kind, f"{reason}; the weights are as before")
        names = self._cache.weights.prefix
        return m.WeightsUpdated(asked.query_id, self.version, names, error=error)

    def begin_staged(self) -> None:
        """Begin the pause of an update once its weights are staged. If they are refused, answer the
        update."""
        update = self._update
        if update is not None and update.staging.done() and not self._is_staged(update):
            self._update = None
            if self._asked is None:
                # A resume may have come since the weights were staged.
                self._pause.end()

    def rest(self) -> None:
        """Answer a pause at rest, and commit staged weights in it. REQUIRES: no forward is in
        flight."""
        if not self.is_paused or not self._pause.comes_to_rest():
            return
        self._answer_pauses()
        update = self._update
        if update is None or update.answer is not None or not update.staging.done():
            return
        if self._tiers is None or not self._tiers.is_busy:
            self._commit(update, update.staging.result())

    def _is_staged(self, update: _Update) -> bool:
        """Return True if the update's weights are staged, with a pause in force. If they are not,
        answer the update."""
        error = update.staging.exception()
        if error is not None:
            log.warning("the weights are as before: %s", error)
            kind = m.ErrorKind.INVALID if isinstance(error, ValueError) else m.ErrorKind.INTERNAL
            self._refuse(update.asked, kind, str(error))
            return False
        if not self.is_paused:
            update.requests = self._pause.requests
            self._pause.begin(update.asked.mode)
        return True

    def _answer_pauses(self) -> None:
        for query_id in self._unanswered:
            self._emit(m.AnswersPaused(query_id, self._pause.requests))
        self._unanswered.clear()

    def _over(self, update: _Update, answer: m.WeightsUpdated) -> None:
        self._emit(answer)
        self._update = None
        if self._asked is None:
            self._pause.end()

    def _commit(self, update: _Update, staged: Staged) -> None:
        # A state after accepted drafts is stored by the weights that computed them.
        self._plans.fold_now()
        try:
            self.name_weights(staged.digests)
        except OSError as error:
            self._over(update, self._refusal(update.asked, m.ErrorKind.INTERNAL, str(error)))
            return
        staged.commit()
        version = update.asked.version or staged.digests.tensors[:16]
        for request in self._handover.requests:
            request.goes_on_with(self.version, version)
            if isinstance(request.state, Active):
                request.mixed = True
            if isinstance(request.state, Prefilling):
                request.state.checkpoints.clear()
        self.version = version
        log.info("the weights are %s now, of %s", version, update.asked.folder)
        names = self._cache.weights.prefix
        update.answer = m.WeightsUpdated(update.asked.query_id, version, names, update.requests)
        if self._role is Role.FUSED:
            self._over(update, update.answer)
        else:
            digests = staged.digests
            self._emit(m.WeightsChanged(digests.files, digests.tensors, names))

    def name_begin(self, request: Request) -> None:
        """Record the version that draws the request's first token, unless it is the start's."""
        if not request.weights and self.version != START_VERSION:
            request.weights = (m.WeightsRun(0, self.version),)

    def name_weights(self, digests: WeightsDigests) -> None:
        """Name states of other weights from now on, in the tree and in a remote store. REQUIRES: no
        copy between tiers is in progress. Raises RemoteFailed; then nothing changed."""
        if self._tiers is not None:
            self._tiers.change_weights(digests.files)
        self._cache.change_weights(WeightsNamespace.of(digests.tensors))


def _stage(staging: Stager, folder: str, staged: "Future[Staged]") -> None:
    name_this_thread()
    try:
        found = staging.stage(folder)
    except BaseException as error:
        staged.set_exception(error)
    else:
        staged.set_result(found)
