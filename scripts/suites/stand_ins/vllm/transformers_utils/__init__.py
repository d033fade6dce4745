"""The parts of this package imported by vLLM's tests: see repo_utils."""
