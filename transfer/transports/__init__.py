"""Transports: ways to write into another node's arena, behind one interface."""
