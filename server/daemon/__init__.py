"""The process of a daemon: from its configuration to its servers, its engine and its end."""
