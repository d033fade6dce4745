"""The remote tier: pages and states in a bucket of a remote store, shared by nodes with the same
model settings."""
