"""Where a prompt is computed and whether its beginning is pulled, by what the engine learnt or by
the configured constants. Thread rule: the engine loop's."""

from tasuki.engine.config import EngineConfig
from tasuki.engine.messages import RouteReport
from tasuki.pycache._cpp_cache import Match
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout
from tasuki.transfer.windows.unit_sizes import UnitSizes

from .cost_learner import CostLearner
from .cost_model import Line, Rates, RoutingDecision, choose_prefill_place, should_pull


class Router:
    """costs: who measures adds what a prompt took."""

    def __init__(self, config: EngineConfig, layout: CacheLayout, wire: UnitSizes) -> None:
        """wire: lengths in bytes of what travels."""
        self._config = config
        self._layout = layout
        self._wire = wire
        self.costs = CostLearner()

    def prefill_place(self, match: Match) -> RoutingDecision:
        """HERE or THERE, for the prompt of the match."""
        rates = self._rates()
        self.costs.judged()
        return choose_prefill_place(
            rates,
            match.prompt_tokens - usable_here(match),
            self.state_bytes(match.kv_tokens, match.prompt_tokens),
            self._config.local_prefill_tokens,
        )

    @property
    def local_tokens(self) -> int:
        """So many are always computed here while nothing was measured."""
        return self._config.local_prefill_tokens

    def pull(self, match: Match, offered: int, ahead: float) -> RoutingDecision:
        """PULLED or not, where the receiver has KV and state of `offered` tokens. ahead: seconds of
        prompts that are computed before this one. Of a prompt that waits this is asked at every
        step: only what is acted on counts as judged."""
        return should_pull(
            self._rates(),
            offered - match.usable_tokens,
            self.state_bytes(min(match.kv_tokens, offered), offered),
            self._config.pull_tokens,
            ahead,
        )

    def pull_seconds(self) -> Line | None:
        """What a pull takes, by its tokens; None where too few were measured."""
        by_bytes = self.costs.pulled.line()
        if by_bytes is None:
            return None
        page = len(self._layout.regions) * self._wire.block_bytes
        return Line(by_bytes.seconds(self._state_bytes()), by_bytes.each * page / PAGE_TOKENS)

    def _rates(self) -> Rates:
        """What may decide now; nothing measured where the constants are to."""
        if self._config.route == "fixed":
            return Rates()
        return self.costs.rates()

    def state_bytes(self, held: int, tokens: int) -> int:
        """Of the pages of `tokens` that a side lacks which holds KV of `held`, and of the state."""
        pages = -(-tokens // PAGE_TOKENS) - held // PAGE_TOKENS
        return pages * len(self._layout.regions) * self._wire.block_bytes + self._state_bytes()

    def _state_bytes(self) -> int:
        states = self._layout.gdn_layers * self._wire.state_layer_bytes
        return states + self._wire.carry_bytes


def usable_here(match: Match) -> int:
    """Tokens that need not be computed here, with those that a load from below the arena brings."""
    return max([match.usable_tokens, *(stored.boundary for stored in match.stored)])


def report(decision: RoutingDecision) -> RouteReport:
    return RouteReport(decision.choice.value, decision.estimates)
