"""From a config to a running engine: memory plan, parts, engines, several ranks, nodes of a
prefill/decode pair."""
