"""What vLLM's tests import of it: see repo_utils."""
