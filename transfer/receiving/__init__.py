"""Receiving side of transfers: the thread taking notifications, and the record of each transfer."""
