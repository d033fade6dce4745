"""Families of what stands below the arena."""
