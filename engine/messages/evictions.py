"""What the cache gave up, and which of it a prompt would have needed: plain, immutable values.

Nothing here decides or remembers; engine/accounting/evictions.py does.
"""

from .types import Message

TIERS = frozenset({"host", "disk"})
"""Below the arena, by name."""
LOAD_FAILED = "load_failed"
"""The cause of tokens that a tier below the arena was to bring, where what came was late or wrong;
it comes before the tree's. Only who asked for the load gives it
(engine/accounting/loaded_hits.py)."""
LOAD_DECLINED = "load_declined"
"""The cause of tokens that a tier has and that were cheaper to compute."""
CAUSES_IN_ORDER = (
    LOAD_FAILED,
    LOAD_DECLINED,
    "checkpoint_evicted",
    "never_checkpointed",
    "alignment",
    "in_flight",
    "kv_evicted",
    "new",
)
"""Why a token of a prompt was not usable, in the order in which the tree lays its causes over a
prompt, from the last usable token on."""
CAUSES = frozenset(CAUSES_IN_ORDER)
NOT_PULLED = "not_pulled"
"""The cause of tokens that were computed on one node while another one held their KV and state; it
comes before the tree's. Only who compares both caches gives it
(engine/handover/receiving/pair_hit.py)."""
TEMPLATE_CHANGED = "template_changed"
"""A cause that no tree can see, of tokens that it takes for new: the chat template renders an
earlier turn otherwise than when it was the last."""
EVICTION_KINDS = frozenset({"checkpoint", "tail", "pages"})


class Eviction(Message):
    """One decision of the cache's policy.

    sequence: 1, 2, 3, ... over the engine's life. kind: checkpoint, tail, or pages (KV that no
    state needs). checkpoint_kind: why a state had been kept. tokens: from the prompt's start to its
    end. slabs: freed, a state's slot being one. score: what the policy held it to be worth, a page;
    None of one that goes by age. taken_by: the request that needed the room; None where a flush did
    or that request is gone.
    """

    sequence: int
    kind: str
    checkpoint_kind: str | None
    tokens: int
    slabs: float
    score: float | None
    taken_by: str | None


class EvictedCheckpoint(Message):
    """The deepest state of a prompt that was evicted.

    tokens: that it covered, whether or not all of them were lost with it. slabs_since: freed by
    its eviction and all later ones, so that an arena larger by as much had kept it, as far as
    evictions go by age. eviction: None where it is forgotten.
    """

    tokens: int
    slabs_since: float
    eviction: Eviction | None = None
