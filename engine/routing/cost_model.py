"""How fast things were, and what that says about a prompt: compute it here or have it handed over;
and over there, fetch the answer's prefix or compute it again.

Values and pure functions; who measures is cost_learner.py. Whoever knows decides: the decode node
between here and there, the prefill node between pulling and computing, since only it knows what its
tree holds. Seconds, tokens, bytes. Invariant: equal arguments, equal decisions; without measured
rates a constant number of tokens decides, as configured.
"""

from dataclasses import dataclass, field

from tasuki.engine.messages import Choice


@dataclass(frozen=True)
class Line:
    """Seconds that an amount takes: `fixed`, and `each` for every unit."""

    fixed: float
    each: float

    def seconds(self, amount: float) -> float:
        return self.fixed + self.each * amount


@dataclass(frozen=True)
class Rates:
    """None: not known, or not lately. here: tokens computed on this node, from allocation to first
    token. there: tokens computed by a prefill node, from asking to the first token's coming, waits
    and pulls included. sent: bytes that came from one. pulled: bytes that were fetched for one.
    forwarded: prompt tokens of a forward, which alone counts, not what waited beside it."""

    here: Line | None = None
    there: Line | None = None
    sent: Line | None = None
    pulled: Line | None = None
    forwarded: Line | None = None


@dataclass(frozen=True)
class RoutingDecision:
    """estimates: seconds by what they are of; empty where a constant decided."""

    choice: Choice
    estimates: dict[str, float] = field(default_factory=dict)

    @property
    def learnt(self) -> bool:
        return bool(self.estimates)


def choose_prefill_place(rates: Rates, tokens: int, size: int, at_most: int) -> RoutingDecision:
    """HERE or THERE for a prompt of which `tokens` are to be computed; `size` bytes would come. At
    most `at_most` tokens stay while the rates are not known.

    What is sent hides behind what is computed; only the rest of it counts.
    """
    if rates.here is None or rates.there is None or rates.sent is None:
        return RoutingDecision(Choice.HERE if tokens <= at_most else Choice.THERE)
    here = rates.here.seconds(tokens)
    hidden = rates.there.each * tokens
    there = rates.there.seconds(tokens) + max(0.0, rates.sent.seconds(size) - hidden)
    estimates = {"here": here, "there": there}
    return RoutingDecision(Choice.HERE if here <= there else Choice.THERE, estimates)


def should_pull(
    rates: Rates, tokens: int, size: int, at_least: int, ahead: float = 0.0
) -> RoutingDecision:
    """PULLED, or THERE without a pull, where `tokens` in `size` bytes could be fetched instead of
    computed. At least `at_least` are fetched while the rates are not known. ahead: seconds of
    prompts that are computed before this one in any case.

    Fetched tokens save no forward, only its length: the fixed part is paid all the same. A fetch of
    at least `at_least` tokens hides behind the prompts ahead, and only the rest of it counts; for
    fewer it is not worth the work that it is for both nodes.
    """
    if tokens <= 0:
        return RoutingDecision(Choice.THERE)
    if rates.forwarded is None or rates.pulled is None:
        return RoutingDecision(Choice.PULLED if tokens >= at_least else Choice.THERE)
    hidden = ahead if tokens >= at_least else 0.0
    estimates = {
        "pull": max(0.0, rates.pulled.seconds(size) - hidden),
        "compute": rates.forwarded.each * tokens,
    }
    pays = estimates["pull"] < estimates["compute"]
    return RoutingDecision(Choice.PULLED if pays else Choice.THERE, estimates)
