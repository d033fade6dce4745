"""Pure core of every transfer: both sides' machines, without clock, thread, stream or bytes."""
