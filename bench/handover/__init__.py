"""What `tasuki bench transfer` measures: windows alone, hand-overs of an engine, whole nodes."""
