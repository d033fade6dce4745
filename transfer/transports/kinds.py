"""The names of transports in the settings."""

KINDS = ("auto", "nixl", "peer_copy")
