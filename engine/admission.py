"""How a waiting request gets what it needs: a lease here, or a prefill node's. A refusal changes
nothing."""

import time
from collections.abc import Callable

from tasuki.engine.accounting.evictions import EvictionLedger, breakdown
from tasuki.engine.handover.decode_side import TakeOver
from tasuki.engine.handover.pull_receiver import Pulls
from tasuki.engine.messages import Choice
from tasuki.engine.routing.cost_learner import RateMeter
from tasuki.engine.routing.cost_model import Rates, Verdict, where, whether_to_pull
from tasuki.engine.scheduling.checkpoint_planner import plan_checkpoints
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.transfer.windows.unit_sizes import UnitSizes

from .config import EngineConfig
from .messages import Outbox, PrefillAccepted, RouteReport
from .request import AwaitingGrant, Prefilling, Progress, Request
from .role import Role


class Admission:
    """Knows the role; asks the cache; moves a request on or leaves it waiting."""

    def __init__(
        self,
        cache: HybridPrefixCache,
        config: EngineConfig,
        role: Role,
        take_over: TakeOver,
        pulls: Pulls,
        ledger: EvictionLedger,
        meter: RateMeter,
        emit: Callable[[Outbox], None],
        wire: UnitSizes | None = None,
    ) -> None:
        """wire: lengths of what travels; the layout's own by default."""
        self._cache = cache
        self._config = config
        self._role = role
        self._take_over = take_over
        self._pulls = pulls
        self._ledger = ledger
        self._meter = meter
        self._emit = emit
        self._wire: UnitSizes = wire or cache.arena.layout

    def admit(self, request: Request) -> bool:
        """Whether the request no longer waits. Raises ImpossibleRequest.

        A refusal is remembered: a blocked request costs a step nothing until something happened
        that might change the answer."""
        answer_depends_on = (self._cache.room_version, self._take_over.prefill_available)
        if request.refused_at == answer_depends_on:
            return False
        admitted = self._try(request)
        request.refused_at = None if admitted else answer_depends_on
        return admitted

    def _try(self, request: Request) -> bool:
        match self._role:
            case Role.PREFILL:
                return self._lease_for_sender(request)
            case Role.DECODE if self._reserved_elsewhere(request):
                return True
            case _:
                return self._lease_here(request)

    def _reserved_elsewhere(self, request: Request) -> bool:
        if not self._take_over.prefill_available or request.handover_lost or request.output:
            return False
        match = self._cache.match(request.prompt, request.salt, request.cursor)
        verdict = where(
            self._rates(),
            match.prompt_tokens - match.usable_tokens,
            self._state_bytes(match.kv_tokens, match.prompt_tokens),
            self._config.local_prefill_tokens,
        )
        # Of a room that a gateway made, a prefill node already waits for us: nothing is weighed.
        if request.told is None:
            request.route = report(verdict)
            if verdict.choice is Choice.HERE:
                return False
        self._take_over.reserve(request, match)
        return True

    def _rates(self) -> Rates:
        """What may decide now; nothing measured where the constants are to."""
        if self._config.route == "fixed":
            return Rates()
        rates = self._meter.rates()
        self._meter.judged()
        return rates

    def _state_bytes(self, held: int, tokens: int) -> int:
        """Of the pages of `tokens` that a side lacks which holds KV of `held`, and of the state."""
        layout = self._cache.arena.layout
        pages = -(-tokens // PAGE_TOKENS) - held // PAGE_TOKENS
        return (
            pages * layout.full_layers * self._wire.block_bytes
            + layout.gdn_layers * self._wire.state_layer_bytes
        )

    def _lease_for_sender(self, request: Request) -> bool:
        if self._pull_pays(request) and self._pulls.begin(request):
            return True
        lease = self._cache.lease(
            request.prompt,
            salt=request.salt,
            capacity_tokens=request.length,
            working_slots=self._role.working_slots,
            cursor=request.cursor,
        )
        if lease is None:
            return False
        request.hit = breakdown(lease.match, self._ledger.lost(lease.match))
        request.move(AwaitingGrant(lease))
        assert request.ticket is not None
        self._emit(PrefillAccepted(request.ticket.room))
        return True

    def _pull_pays(self, request: Request) -> bool:
        assert request.ticket is not None
        offered = request.ticket.offered
        if request.pull_tried or not offered:
            return False
        match = self._cache.match(request.prompt, request.salt, request.cursor)
        verdict = whether_to_pull(
            self._rates(),
            offered - match.usable_tokens,
            self._state_bytes(min(match.kv_tokens, offered), offered),
            self._config.pull_tokens,
        )
        request.route = report(verdict)
        return verdict.choice is Choice.PULLED

    def _lease_here(self, request: Request) -> bool:
        lease = self._cache.lease(
            request.tokens(),
            salt=request.salt,
            capacity_tokens=request.next_capacity,
            working_slots=self._role.working_slots,
            cursor=request.cursor,
        )
        if lease is None:
            return False
        if request.hit is None:
            request.hit = breakdown(lease.match, self._ledger.lost(lease.match))
        request.started = time.monotonic(), lease.cached_tokens
        planned = plan_checkpoints(request.length, lease.cached_tokens, lease.match, request.marks)
        request.move(Prefilling(lease, Progress(lease.cached_tokens), checkpoints=planned))
        return True


def report(verdict: Verdict) -> RouteReport:
    return RouteReport(verdict.choice.value, verdict.estimates)
