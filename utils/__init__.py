"""Helpers for all packages: flags, logs, TLS files, Triton launches."""
