"""Texts that items carry, encoded."""
