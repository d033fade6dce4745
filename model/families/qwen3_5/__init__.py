"""The family of Qwen3.5: Gated DeltaNet and gated full attention, dense or with experts."""
