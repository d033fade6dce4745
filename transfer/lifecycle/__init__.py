"""Pure core of every transfer: the state machines of both sides, without clock, thread, stream or
bytes."""
