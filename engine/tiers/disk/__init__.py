"""The disk tier: pages and states in a file below host memory."""
