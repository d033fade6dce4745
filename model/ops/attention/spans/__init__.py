"""Attention by spans of keys at fixed positions; rows with common pages are attended in groups."""
