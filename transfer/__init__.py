"""The hand-over: protocol, steps, windows, digest and transports. Knows bytes and layers, never
tokens' meaning."""
