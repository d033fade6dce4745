"""Simulated prefill nodes: what one computes and reports, and which of them live."""
