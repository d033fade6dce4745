"""Driver of transfers: the event loop, tasks and processes around their pure state machines."""
