"""An engine in a process of its own: what crosses to its front, and the socket that carries it."""
