"""Answers what stands in the cache's tree: one call of the tree, whose cost the limit bounds."""

from ..pycache.prefix_cache import HybridPrefixCache
from .messages import TreeQuery, TreeReply


def tree_reply(cache: HybridPrefixCache, query: TreeQuery) -> TreeReply:
    under = query.under
    if query.prefix is not None:
        under = cache.node_at(query.prefix, query.salt)
        if under is None:
            return TreeReply(query.query_id, None)
    return TreeReply(query.query_id, cache.view(query.limit, under))
