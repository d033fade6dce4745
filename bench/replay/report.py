"""A replay's outcome, as JSON and as a table."""

from typing import Any

from .player import Tally
from .prompts import Prompts
from .trace import Trace


def outcome(
    trace: Trace, prompts: Prompts, model: str, gib: float, policy: str, tally: Tally
) -> dict[str, Any]:
    """Shares are of prompt tokens, flops_saved of prefill FLOPs; usable and causes sum to 1."""
    total = tally.prompt_tokens
    return {
        "trace": trace.name,
        "model": model,
        "gb": gib,
        "policy": policy,
        "requests": tally.requests,
        "refused": tally.refused,
        "recovered_answers": prompts.recovered_answers,
        "prompt_tokens": total,
        "hit_rate": tally.usable_tokens / total,
        "token_hit": tally.usable_tokens / total,
        "flops_saved": tally.flops_saved / tally.flops,
        "requests_per_second": tally.requests / max(tally.cpu_seconds, 1e-9),
        "causes": {name: tokens / total for name, tokens in tally.causes.items()},
        "hit_from": {name: tokens / total for name, tokens in tally.sources.items()},
    }


def as_text(result: dict[str, Any]) -> str:
    lines = [
        f"{result['trace']}  {result['model']}  {result['gb']:g} GB  policy {result['policy']}",
        f"  requests       {result['requests']}  ({result['refused']} refused, "
        f"{result['recovered_answers']} answers recovered)",
        f"  token_hit      {result['token_hit']:.4f}",
        f"  flops_saved    {result['flops_saved']:.4f}",
        f"  requests/s     {result['requests_per_second']:.0f}",
        "  prompt tokens, 100 %",
        _bar("usable", result["token_hit"]),
        *(_bar(name, share) for name, share in result["causes"].items()),
    ]
    return "\n".join(lines) + "\n"


def _bar(name: str, share: float) -> str:
    return f"    {name:<20}{share:7.2%}  {'#' * round(share * 40)}"
