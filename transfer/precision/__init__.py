"""Rows that travel in fewer bits than they are kept in."""
