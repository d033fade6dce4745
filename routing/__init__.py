"""Choice of a node for a prompt or a session: pure functions of the request, the nodes' caches and
loads."""
