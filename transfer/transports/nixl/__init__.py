"""One-sided writes by NIXL over UCX."""
