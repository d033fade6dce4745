"""The rows of `tasuki bench transfer`: windows alone, hand-overs of an engine, whole nodes."""
