"""A tier in a bucket of a remote store, which nodes of one contract share."""
