"""States of prefill nodes that end, on their way to others."""
