"""The metrics of a node that the fleet's page is made of; docs/metrics.md has what they mean."""

NODE = "tasuki_node_info"
STARTED = "tasuki_node_start_time_seconds"
FIRST_TOKEN = "tasuki_time_to_first_token_seconds"
PER_TOKEN = "tasuki_time_per_output_token_seconds"
QUEUE = "tasuki_queue_seconds"
ROOM_QUEUE = "tasuki_room_queue_seconds"
GENERATED = "tasuki_generated_tokens_total"
REQUESTS = "tasuki_requests"
PAGES = "tasuki_cache_pages"
SLOTS = "tasuki_cache_slots"
SLABS = "tasuki_cache_slabs"
SLAB_BYTES = "tasuki_cache_slab_bytes"
EACH_BYTES = "tasuki_cache_each_bytes"
INTEGRITY = "tasuki_cache_integrity"
REFUSED = "tasuki_requests_rejected_total"
LOST_HANDOVERS = "tasuki_handovers_lost_total"

ANSWERED = (
    "tasuki_request_prompt_tokens_total",
    "tasuki_request_usable_tokens_total",
    "tasuki_request_lost_tokens_total",
)
"""Prompt tokens, the usable ones, and the others by cause: of requests that clients asked here."""

LOOKED_UP = (
    "tasuki_cache_prompt_tokens_total",
    "tasuki_cache_usable_tokens_total",
    "tasuki_cache_lost_tokens_total",
)
"""The same of the tree, for a node that clients do not ask."""

TIER_SLABS = "tasuki_tier_slabs"
TIER_BYTES = "tasuki_tier_bytes_total"
"""Both only of nodes that keep memory below their arena."""

LINK_STATE = "tasuki_handover_link_state"
LINK_HANDOVERS = "tasuki_handover_link_handovers_total"
LINK_BYTES = "tasuki_handover_link_bytes_total"
LINK_EXPOSED = "tasuki_handover_link_exposed_seconds_total"

CHOICES = "tasuki_prefill_choices_total"
CHOICE_EXPECTED = "tasuki_prefill_choice_expected_tokens_total"
CHOICE_FOUND = "tasuki_prefill_choice_found_tokens_total"
CHOICE_REGRET = "tasuki_prefill_choice_regret_seconds_total"
CHOOSING = frozenset({CHOICES, CHOICE_EXPECTED, CHOICE_FOUND, CHOICE_REGRET})
"""Only of nodes that choose prefill nodes; what others have none of is left out."""

CALLER_ENDED = "tasuki_caller_requests_finished_total"
CALLER_FIRST_TOKEN = "tasuki_caller_time_to_first_token_seconds"
CALLER_PER_TOKEN = "tasuki_caller_time_per_output_token_seconds"
CALLER_TARGETS = "tasuki_caller_target_requests_total"

_HISTOGRAMS = (FIRST_TOKEN, PER_TOKEN, QUEUE, ROOM_QUEUE, CALLER_FIRST_TOKEN, CALLER_PER_TOKEN)
WANTED = frozenset(
    {
        *(NODE, STARTED, GENERATED, REQUESTS, PAGES, SLOTS, INTEGRITY, REFUSED, LOST_HANDOVERS),
        *(*ANSWERED, *LOOKED_UP),
        *(SLABS, SLAB_BYTES, EACH_BYTES, TIER_SLABS, TIER_BYTES),
        *(LINK_STATE, LINK_HANDOVERS, LINK_BYTES, LINK_EXPOSED, CALLER_ENDED),
        CALLER_TARGETS,
        *(f"{name}_bucket" for name in _HISTOGRAMS),
        *CHOOSING,
    }
)
"""Everything else that a node answers is passed over."""
