"""The family of Qwen3-Next: the layers of `families.qwen3_5` with experts, stored in another order
of rows, and a flat config with plain rotary positions."""
