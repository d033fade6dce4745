"""The number tiles at the top of the first dashboard: the state of the service in ten seconds. Data
only.

Their colours change at the bounds of docs/grafana/alerts.yml, and one step earlier.
"""

from .panel import NODES, Query, Tile, quantiles, rate, share

PROMPT = rate("request_prompt_tokens_total")
USABLE = rate("request_usable_tokens_total")

_GOOD, _WATCH, _BAD = "green", "orange", "red"
_PLAIN = ((None, "blue"),)
_ENDED = rate("request_duration_seconds_count")
_FAILED = f'sum (rate(tasuki_calls_failed_total{{kind!="invalid", {NODES}}}[$rate]))'
_QUEUED = "Waiting|AwaitingPrefill|AwaitingGrant|AwaitingMedia|Pulling|Loading|Retracted"

TILES = (
    Tile(
        "Nodes ready",
        "percentunit",
        (
            Query(
                f'sum (tasuki_node_state{{state="ready", {NODES}}}) '
                f'/ count (up{{job=~".*tasuki.*", {NODES}}})',
                "ready",
            ),
        ),
        "Of those that Prometheus asks. The others are down, starting, draining or lost.",
        ((None, _BAD), (1.0, _GOOD)),
    ),
    Tile(
        "Output",
        "short",
        (Query(rate("generated_tokens_total"), "tokens a second"),),
        "Tokens a second that clients get.",
        _PLAIN,
    ),
    Tile(
        "First token",
        "s",
        quantiles("time_to_first_token_seconds", (0.5, 0.95)),
        "From arrival.",
        ((None, _GOOD), (2.0, _WATCH), (5.0, _BAD)),
    ),
    Tile(
        "Each token after",
        "s",
        quantiles("time_per_output_token_seconds", (0.5, 0.95)),
        "Mean of each request, after its first token.",
        ((None, _GOOD), (0.1, _WATCH), (0.2, _BAD)),
    ),
    Tile(
        "Waiting",
        "short",
        (Query(f'sum (tasuki_requests{{state=~"{_QUEUED}", {NODES}}})', "requests"),),
        "Requests whose next token nobody computes yet.",
        ((None, _GOOD), (16.0, _WATCH), (64.0, _BAD)),
    ),
    Tile(
        "Hit rate",
        "percentunit",
        (Query(share(USABLE, PROMPT), "usable"),),
        "Of the prompt tokens of requests that ended, those that needed no computing.",
        _PLAIN,
    ),
    Tile(
        "Memory in use",
        "percentunit",
        (
            Query(
                f'sum (tasuki_arena_bytes{{use="in_use", {NODES}}}) '
                f"/ sum (tasuki_arena_bytes{{{NODES}}})",
                "in use",
            ),
        ),
        "Of the arenas, by requests: no eviction can take it. The rest is cached or free.",
        ((None, _GOOD), (0.85, _WATCH), (0.95, _BAD)),
    ),
    Tile(
        "Errors",
        "percentunit",
        (Query(share(_FAILED, f"({_ENDED} + {_FAILED})"), "failed"),),
        "Of calls, those that were refused or failed, but for malformed ones.",
        ((None, _GOOD), (0.01, _WATCH), (0.05, _BAD)),
    ),
)
