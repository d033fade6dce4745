"""Metrics of many nodes, and the fleet page made from them."""
