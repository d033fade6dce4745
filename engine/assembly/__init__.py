"""From a config to a running engine: memory plan, parts, engines, several ranks, pairs."""
