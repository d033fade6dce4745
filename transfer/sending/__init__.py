"""Sending side of transfers: the thread posting layer chunks, its chunks' source and its links to
peers."""
