"""Daemon of a decode node: it receives prefixes from prefill nodes and writes the answers to
clients."""
