"""An engine in a separate process: its messages with the API server, and their socket."""
