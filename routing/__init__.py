"""The right node for a prompt: pure functions of the request, the index and the loads."""
