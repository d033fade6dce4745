"""Conversations: items under one name, which responses go on from and add to."""
