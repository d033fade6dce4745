"""Qwen4-Exp: Gated DeltaNet and sparse attention on several residual streams, with an n-gram
table."""
