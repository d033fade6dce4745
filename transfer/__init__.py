"""Transport of KV and state between nodes: protocol, layer chunks, digests and transports. Knows
bytes and layers, never the meaning of tokens."""
