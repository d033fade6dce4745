"""What a request leaves in the tree when it stops running."""

import numpy as np

from ..pycache._cpp_cache import CheckpointKind
from ..pycache.prefix_cache import HybridPrefixCache
from .request import Active, Request


def keep_state(
    cache: HybridPrefixCache, request: Request, active: Active, hint: str = "unknown"
) -> None:
    """Publish KV and state at the exact last forwarded token, so that the next turn resumes there.

    `hint` is what the end tells of the next turn (HybridTree.publish). The last sampled token was
    never forwarded and has no state. A forward in flight may already be one token further: it
    writes the other working slot, and KV that no match counts. ENSURES: only release may follow.
    """
    lease, computed = active.lease, active.progress.computed
    if computed == 0:
        return
    if lease.tokens < computed:
        missing = request.token_slice(lease.tokens, computed)
        cache.append(lease, np.asarray(missing, dtype=np.int32))
    if computed == lease.match.usable_tokens:
        return
    cache.publish(lease, computed, active.state_slot, CheckpointKind.TURN_END, hint)
