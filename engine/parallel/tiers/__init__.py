"""Tiers below arenas of several ranks: each rank copies its own part of every page and state."""
