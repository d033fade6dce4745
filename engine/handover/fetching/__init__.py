"""States that go from a prefill node to a decode node as they are."""
