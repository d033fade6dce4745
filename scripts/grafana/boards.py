"""The boards: what an operator looks at first, then the cache, hand-overs and faults. Data only."""

from dataclasses import dataclass

from .panel import Panel, Query, gauge, quantiles, rate, share


@dataclass(frozen=True)
class Board:
    """name: of its file, and its uid behind `tasuki-`."""

    name: str
    title: str
    panels: tuple[Panel, ...]


_PROMPT = rate("tasuki_request_prompt_tokens_total")
_USABLE = rate("tasuki_request_usable_tokens_total")

OVERVIEW = Board(
    "overview",
    "tasuki: overview",
    (
        Panel(
            "Prompt tokens by what became of them",
            "short",
            (
                Query(_USABLE, "usable"),
                Query(rate("tasuki_request_lost_tokens_total", "cause"), "{{cause}}"),
            ),
            "Usable and all causes are the prompt. What is not new was seen before and lost.",
            stacked=True,
        ),
        Panel(
            "Usable share of prompt tokens",
            "percentunit",
            (Query(share(_USABLE, _PROMPT), "usable"),),
            "What did not have to be computed again.",
        ),
        Panel(
            "Time to first token",
            "s",
            quantiles("tasuki_time_to_first_token_seconds"),
            "From arrival.",
        ),
        Panel(
            "Time per output token",
            "s",
            quantiles("tasuki_time_per_output_token_seconds"),
            "Mean of each request, after its first token.",
        ),
        Panel(
            "Queue",
            "s",
            quantiles("tasuki_queue_seconds"),
            "Before the prompt was computed, here or elsewhere.",
        ),
        Panel(
            "Prefill",
            "s",
            quantiles("tasuki_prefill_seconds"),
            "Computing or receiving the prompt.",
        ),
        Panel(
            "Tokens a second",
            "short",
            (
                Query(rate("tasuki_generated_tokens_total"), "generated"),
                Query(_PROMPT, "prompt"),
            ),
            "Of requests that ended, and of tokens emitted.",
        ),
        Panel(
            "Requests by state",
            "short",
            (Query(gauge("tasuki_requests", "state"), "{{state}}"),),
            "In the engines now.",
            stacked=True,
        ),
        Panel(
            "Step",
            "s",
            quantiles("tasuki_engine_step_seconds"),
            "From planning a forward to having landed the one before.",
        ),
        Panel(
            "Device idle between steps",
            "percentunit",
            (Query(rate("tasuki_engine_idle_seconds_sum"), "idle"),),
            "Of a second, while there was work.",
        ),
    ),
)

CACHE = Board(
    "cache",
    "tasuki: cache",
    (
        Panel(
            "State slots",
            "short",
            (Query(gauge("tasuki_cache_slots", "owner"), "{{owner}}"),),
            "By owner; the sum is what the pool could hold while the other keeps what it has.",
            stacked=True,
        ),
        Panel(
            "KV pages",
            "short",
            (Query(gauge("tasuki_cache_pages", "owner"), "{{owner}}"),),
            "By owner.",
            stacked=True,
        ),
        Panel(
            "Evicted slabs by kind",
            "short",
            (Query(rate("tasuki_cache_evicted_slabs_total", "kind"), "{{kind}}"),),
            "Room made a second. Pages go first: no state needs them.",
            stacked=True,
        ),
        Panel(
            "Worth of what is evicted",
            "none",
            quantiles("tasuki_cache_eviction_score"),
            "As the policy held it; rising: the arena is too small for what comes back.",
        ),
        Panel(
            "Prefill that each policy would have saved",
            "short",
            (Query(gauge("tasuki_cache_policy_saved_tokens", "policy"), "{{policy}}"),),
            "Of the shadows' sample, of late.",
        ),
        Panel(
            "Policy that evicts",
            "none",
            (Query(gauge("tasuki_cache_policy_followed", "policy"), "{{policy}}"),),
            "Nodes that follow it.",
        ),
        Panel(
            "Looked up and lost on each node",
            "short",
            (
                Query(rate("tasuki_cache_usable_tokens_total", "instance"), "usable {{instance}}"),
                Query(rate("tasuki_cache_lost_tokens_total", "cause"), "{{cause}}"),
            ),
            "By the trees themselves, so that what was retracted or leased for others counts too.",
        ),
        Panel(
            "Checkpoints and nodes",
            "short",
            (
                Query(gauge("tasuki_cache_checkpoints", "instance"), "checkpoints {{instance}}"),
                Query(gauge("tasuki_cache_nodes", "instance"), "nodes {{instance}}"),
            ),
            "Of the radix trees.",
        ),
    ),
)

HANDOVER = Board(
    "hand-over",
    "tasuki: hand-over",
    (
        Panel(
            "Prompts handed over and kept",
            "short",
            (
                Query(rate("tasuki_remote_prefills_total"), "handed over"),
                Query(rate("tasuki_local_fallbacks_total"), "fell back"),
            ),
            "Requests a second.",
        ),
        Panel(
            "Exposed transfer time",
            "s",
            quantiles("tasuki_handover_exposed_seconds"),
            "After the forward's end: what the client waits for.",
        ),
        Panel(
            "Sending, hidden and exposed",
            "percentunit",
            (Query(rate("tasuki_handover_sent_seconds_total", "when"), "{{when}}"),),
            "Seconds a second, on the senders.",
            stacked=True,
        ),
        Panel(
            "Bytes",
            "Bps",
            (
                Query(rate("tasuki_handover_sent_bytes_total"), "sent"),
                Query(rate("tasuki_handover_bytes_total"), "arrived"),
            ),
            "Of hand-overs that went to their end.",
        ),
        Panel(
            "Windows by what became of them",
            "short",
            (Query(rate("tasuki_handover_windows_total", "outcome"), "{{outcome}}"),),
            "On the receivers; only landed is good.",
        ),
        Panel(
            "Windows sent",
            "short",
            (Query(rate("tasuki_handover_sent_windows_total"), "sent"),),
            "On the senders, of rooms sent whole.",
        ),
        Panel(
            "A window",
            "s",
            quantiles("tasuki_handover_window_seconds"),
            "From its digest's begin to its flush; few and long ones hide less.",
        ),
        Panel(
            "Pulls by outcome",
            "short",
            (Query(rate("tasuki_pulls_total", "outcome"), "{{outcome}}"),),
            "Prefill nodes that fetched a prompt's beginning instead of computing it.",
        ),
        Panel(
            "Pulled",
            "Bps",
            (Query(rate("tasuki_pulled_bytes_total"), "bytes"),),
            "By prefill nodes from the nodes that asked.",
        ),
        Panel(
            "Rooms' queue",
            "s",
            quantiles("tasuki_room_queue_seconds"),
            "On prefill nodes, until the prompt was computed.",
        ),
        Panel(
            "Rooms' prefill",
            "s",
            quantiles("tasuki_room_prefill_seconds"),
            "On prefill nodes.",
        ),
    ),
)

FAULTS = Board(
    "faults",
    "tasuki: faults",
    (
        Panel(
            "Hand-overs lost",
            "short",
            (Query(rate("tasuki_handovers_lost_total", "cause"), "{{cause}}"),),
            "Each cost a retry elsewhere or a prefill here; digest must be 0.",
            stacked=True,
        ),
        Panel(
            "Fences",
            "s",
            quantiles("tasuki_fence_seconds"),
            "How long ids stayed out of use after a loss.",
        ),
        Panel(
            "Prefill nodes by state",
            "short",
            (Query(gauge("tasuki_prefill_nodes", "state"), "{{state}}"),),
            "As their decode nodes see them.",
        ),
        Panel(
            "Rooms by outcome",
            "short",
            (
                Query(rate("tasuki_rooms_ended_total", "outcome"), "{{outcome}}"),
                Query(rate("tasuki_handover_sent_rooms_total", "outcome"), "sender {{outcome}}"),
            ),
            "On prefill nodes.",
        ),
        Panel(
            "Requests refused and ended",
            "short",
            (
                Query(rate("tasuki_requests_rejected_total", "kind"), "refused {{kind}}"),
                Query(rate("tasuki_requests_finished_total", "reason"), "{{reason}}"),
            ),
            "A second.",
        ),
        Panel(
            "Cancelled hand-overs",
            "short",
            (Query(rate("tasuki_handovers_cancelled_total"), "cancelled"),),
            "The client went away.",
        ),
        Panel(
            "Quarantined",
            "short",
            (
                Query('sum(tasuki_cache_slots{owner="quarantined", instance=~"$node"})', "slots"),
                Query('sum(tasuki_cache_pages{owner="quarantined", instance=~"$node"})', "pages"),
            ),
            "Ids that a lost writer might still write; they come back with its fence.",
        ),
        Panel(
            "Cache integrity",
            "none",
            (
                Query(
                    'min by (instance) (tasuki_cache_integrity{instance=~"$node"})', "{{instance}}"
                ),
            ),
            "1 while every invariant holds.",
        ),
    ),
)

BOARDS = (OVERVIEW, CACHE, HANDOVER, FAULTS)
