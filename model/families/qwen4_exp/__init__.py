"""Qwen4-Exp: Gated DeltaNet and sparse attention on several residual streams, with an n-gram table.

It builds on qwen3_5: the projections, experts and rank cuts of its mixers are the same.
"""
