"""The parts of vLLM's transformers_utils imported by its tests: see repo_utils."""
