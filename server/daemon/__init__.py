"""One process: from its configuration to its servers, its engine and its end."""
