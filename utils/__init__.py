"""What belongs to no room: flags, logs, TLS files, Triton launches."""
