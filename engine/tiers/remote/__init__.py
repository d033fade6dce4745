"""A tier in a bucket of a remote store, shared by the nodes of one contract."""
