"""Grafana's dashboards: first an operator's overview, then the cache, the tiers below the arena,
pictures, transfers and faults. Data only.

Metrics are named without their common prefix `tasuki_`.
"""

from dataclasses import dataclass

from .panel import (
    NODES,
    Panel,
    Query,
    Tile,
    by_label,
    by_tier,
    gauge,
    of_stage,
    of_tiers,
    rate,
    rates,
    share,
    spread,
    times,
)
from .tiles import PROMPT, TILES, USABLE


@dataclass(frozen=True)
class Board:
    """One dashboard. name: name of its file; after "tasuki" also its uid and title."""

    name: str
    panels: tuple[Panel | Tile, ...]


OVERVIEW = Board(
    "overview",
    (
        *TILES,
        Panel(
            "Prompt tokens by what became of them",
            "short",
            (
                Query(USABLE, "usable"),
                Query(rate("request_lost_tokens_total", "cause"), "{{cause}}"),
            ),
            "Usable and all causes are the prompt. What is not new was seen before and lost.",
            stacked=True,
        ),
        Panel(
            "Usable share of prompt tokens",
            "percentunit",
            (Query(share(USABLE, PROMPT), "usable"),),
            "What did not have to be computed again.",
        ),
        times("Time to first token", "time_to_first_token", "From arrival."),
        times(
            "Time per output token",
            "time_per_output_token",
            "Mean of each request, after its first token.",
        ),
        times("Queue", "queue", "Before the prompt was computed, here or elsewhere."),
        times("Prefill", "prefill", "Computing or receiving the prompt."),
        rates(
            "Tokens a second",
            "Of requests that ended, and of tokens emitted.",
            generated="generated_tokens_total",
            prompt="request_prompt_tokens_total",
        ),
        Panel(
            "Drafted tokens a second",
            "short",
            (
                Query(rate("drafted_tokens_total", "drafter"), "{{drafter}}: drafted"),
                Query(rate("accepted_draft_tokens_total", "drafter"), "{{drafter}}: held"),
            ),
            "Of requests that ended, by what proposed them.",
        ),
        by_label("Requests by state", "requests", "state", "In the engines now.", stacked=True),
        by_label(
            "Calls that failed",
            "calls_failed_total",
            "kind",
            "A second, by the kind of error that clients got.",
            stacked=True,
        ),
        rates("Requests that gave way", "Times a second.", times="retractions_total"),
        times("Step", "engine_step", "From one forward's end to the next one's."),
        rates(
            "Device idle between steps",
            "Of a second, while there was work.",
            "percentunit",
            idle="engine_idle_seconds_sum",
        ),
    ),
)

CACHE = Board(
    "cache",
    (
        by_label(
            "State slots",
            "cache_slots",
            "owner",
            "By owner; the sum is what the pool could hold while the other keeps what it has.",
            stacked=True,
        ),
        by_label("KV pages", "cache_pages", "owner", "By owner.", stacked=True),
        by_label(
            "Arena",
            "arena_bytes",
            "use",
            "In use, which no eviction can take; cached for later prompts; free.",
            "bytes",
            stacked=True,
        ),
        by_label(
            "Evicted slabs by kind",
            "cache_evicted_slabs_total",
            "kind",
            "Room made a second. Pages go first: no state needs them.",
            stacked=True,
        ),
        spread(
            "Worth of what is evicted",
            "cache_eviction_score",
            "As the policy held it; rising: the arena is too small for what comes back.",
            "none",
        ),
        by_label(
            "Prefill that each policy would have saved",
            "cache_policy_saved_tokens",
            "policy",
            "Of the shadows' sample, of late.",
        ),
        by_label(
            "Policy that evicts", "cache_policy_followed", "policy", "Nodes that follow it.", "none"
        ),
        Panel(
            "Looked up and lost on each node",
            "short",
            (
                Query(rate("cache_usable_tokens_total", "instance"), "usable {{instance}}"),
                Query(rate("cache_lost_tokens_total", "cause"), "{{cause}}"),
            ),
            "By the trees themselves, so that what was retracted or leased for others counts too.",
        ),
        Panel(
            "Checkpoints and nodes",
            "short",
            (
                Query(gauge("cache_checkpoints", "instance"), "checkpoints {{instance}}"),
                Query(gauge("cache_nodes", "instance"), "nodes {{instance}}"),
            ),
            "Of the radix trees.",
        ),
    ),
)

_FREE_SLABS, _ALL_SLABS = (of_tiers("slabs", where=f'use="{use}", ') for use in ("free", "total"))

TIERS = Board(
    "tiers",
    (
        Panel(
            "In use",
            "percentunit",
            (Query(f"1 - {_FREE_SLABS} / {_ALL_SLABS}", "{{tier}}"),),
            "Of each tier below the arena.",
        ),
        Panel(
            "Moved",
            "Bps",
            tuple(
                Query(of_tiers("bytes_total", where=f'direction="{way}", '), f"{{{{tier}}}} {way}")
                for way in ("loaded", "written")
            ),
            "Between each tier and the arena, of what was of use.",
        ),
        by_tier(
            "Loads",
            "loads_total",
            "end",
            "A second, by how they ended; all but those that are done were computed. A mismatch is "
            "memory or a disk that returned something else.",
        ),
        by_tier("Writes", "writes_total", "end", "A second, by how they ended."),
        by_tier("Under way", "moving", "what", "Copies now, and writes that wait."),
        by_tier("Given up", "dropped_total", "kind", "A second; rising: the tier is small."),
        by_tier(
            "Kept beyond a node",
            "kept_total",
            "what",
            "Of a disk and a remote store, a second; torn, lost and failed: it is ill or full.",
        ),
        Panel(
            "Write budget",
            "bytes",
            (Query(of_tiers("budget_bytes", "what"), "{{tier}} {{what}}"),),
            "What may be written now, and what is gained a second, where a budget is given.",
        ),
    ),
)

_STAGES = ("decode", "resize", "tower", "wait")

PICTURES = Board(
    "pictures",
    (
        by_label(
            "Pictures by what became of them",
            "pictures_total",
            "outcome",
            "A second. Skipped: a hit covers it; kept: its rows were there. Encoded ones cost.",
            stacked=True,
        ),
        Panel(
            "Seconds of stages",
            "s",
            tuple(
                Query(f"histogram_quantile(0.9, {of_stage(stage)})", f"{stage} p90")
                for stage in _STAGES
            ),
            "Wait: from a prompt's first need of its rows until they exist.",
        ),
        Panel(
            "Busy seconds of stages a second",
            "short",
            (Query(rate("picture_seconds_sum", "stage"), "{{stage}}"),),
            "Of the tower: of the device. Of decode: of as many processes.",
        ),
        by_label(
            "Budget of rows",
            "picture_rows_bytes",
            "use",
            "No free and no kept bytes: prompts wait. See --picture-rows-mib.",
            unit="bytes",
            stacked=True,
        ),
        by_label(
            "Picture files in memory",
            "media_bytes",
            "holder",
            "See --session-pictures-mib and --response-store-mib.",
            unit="bytes",
            stacked=True,
        ),
        rates(
            "Decoders lost",
            "A second. Rising: somebody sends files that kill decoders.",
            lost="picture_decoders_lost_total",
        ),
    ),
)

HANDOVER = Board(
    "hand-over",
    (
        rates(
            "Prompts handed over and kept",
            "Requests a second.",
            handed_over="remote_prefills_total",
            fell_back="local_fallbacks_total",
        ),
        times(
            "Exposed transfer time",
            "handover_exposed",
            "After the forward's end: what the client waits for.",
        ),
        by_label(
            "Sending, hidden and exposed",
            "handover_sent_seconds_total",
            "when",
            "Seconds a second, on the senders.",
            "percentunit",
            stacked=True,
        ),
        rates(
            "Bytes",
            "Of hand-overs that went to their end.",
            "Bps",
            sent="handover_sent_bytes_total",
            arrived="handover_bytes_total",
        ),
        by_label(
            "Windows by what became of them",
            "handover_windows_total",
            "outcome",
            "On the receivers; only landed is good.",
        ),
        rates(
            "Windows sent",
            "On the senders, of rooms sent whole.",
            sent="handover_sent_windows_total",
        ),
        times(
            "A window",
            "handover_window",
            "From its digest's begin to its flush; few and long ones hide less.",
        ),
        by_label(
            "Pulls by outcome",
            "pulls_total",
            "outcome",
            "Prefill nodes that fetched a prompt's beginning instead of computing it.",
        ),
        rates(
            "Pulled",
            "By prefill nodes from the nodes that asked.",
            "Bps",
            bytes="pulled_bytes_total",
        ),
        times("Rooms' queue", "room_queue", "On prefill nodes, until the prompt was computed."),
        times("Rooms' prefill", "room_prefill", "On prefill nodes."),
    ),
)

FAULTS = Board(
    "faults",
    (
        by_label(
            "Hand-overs lost",
            "handovers_lost_total",
            "cause",
            "Each cost a retry elsewhere or a prefill here; digest must be 0.",
            stacked=True,
        ),
        times("Fences", "fence", "How long ids stayed out of use after a loss."),
        by_label(
            "Prefill nodes by state", "prefill_nodes", "state", "As their decode nodes see them."
        ),
        Panel(
            "Rooms by outcome",
            "short",
            (
                Query(rate("rooms_ended_total", "outcome"), "{{outcome}}"),
                Query(rate("handover_sent_rooms_total", "outcome"), "sender {{outcome}}"),
            ),
            "On prefill nodes.",
        ),
        Panel(
            "Requests refused and ended",
            "short",
            (
                Query(rate("requests_rejected_total", "kind"), "refused {{kind}}"),
                Query(rate("requests_finished_total", "reason"), "{{reason}}"),
            ),
            "A second.",
        ),
        rates(
            "Cancelled hand-overs",
            "The client went away, or the first token was the answer.",
            cancelled="handovers_cancelled_total",
        ),
        by_label("Nodes by state", "node_state", "state", "By their own word.", stacked=True),
        Panel(
            "Quarantined",
            "short",
            tuple(
                Query(f'sum(tasuki_cache_{pool}{{owner="quarantined", {NODES}}})', pool)
                for pool in ("slots", "pages")
            ),
            "Ids that a lost writer might still write; they come back with its fence.",
        ),
        Panel(
            "Cache integrity",
            "none",
            (Query(f"min by (instance) (tasuki_cache_integrity{{{NODES}}})", "{{instance}}"),),
            "1 while every invariant holds.",
        ),
    ),
)

BOARDS = (OVERVIEW, CACHE, TIERS, PICTURES, HANDOVER, FAULTS)
