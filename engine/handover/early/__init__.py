"""Forwards of a request whose prompt is still landing, from a prefill node or from below the
arena."""
