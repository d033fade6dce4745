"""Stand-ins for the helpers of vLLM imported by its tests."""
