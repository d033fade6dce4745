"""Driver of transfers: event loop, tasks and processes around the pure machines of rooms."""
