"""Which requests the next forward computes, and where it leaves checkpoints."""
