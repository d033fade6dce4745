"""Tiers below the arena: copiers, and rules for the begin and the acknowledgement of a copy."""
