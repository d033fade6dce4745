"""The Responses API over a WebSocket: one response after the other on a connection."""
