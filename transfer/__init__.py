"""Hand-over: protocol, steps, layer chunks, digest and transports. Knows bytes and layers, never
tokens' meaning."""
