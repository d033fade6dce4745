"""The settings that a role-change call may set, and those that only a start of the node may set.

Pure. Invariant: every setting of a node is in exactly one of the two lists (a test compares), so
that no call can set a new setting before its author has decided.
"""

TUNING = frozenset(
    {
        *("arena_mib", "max_batch", "prefill_chunk_tokens", "threads", "cache_policy"),
        "queue_timeout",
        *("route", "local_prefill_tokens", "pull_tokens", "layers_per_window"),
        *("drain_timeout", "max_sessions", "session_idle_seconds", "log_level"),
    }
)
"""How fast a node works and how much it holds."""

FIXED = frozenset(
    {
        # Callers and their limits.
        *("api_key", "api_keys", "share_cache", "max_message_mib"),
        *("requests_per_minute", "tokens_per_minute"),
        *("requests_per_key", "sessions_per_key", "watchers_per_key", "max_watchers"),
        *("max_connections", "allowed_hosts"),
        *("tls_cert", "tls_key", "tls_client_ca", "insecure", "gateway"),
        # Addresses, and peers trusted with prompts and memory.
        *("bind", "http_bind", "handover_bind", "name", "advertise", "etcd", "etcd_prefix"),
        *("prefill", "prefill_file", "prefill_ca"),
        # The model, and the settings that peers must share.
        *("model", "served_model_name", "dtype", "ssm_dtype", "device", "transport"),
        *("wire_kv", "wire_state", "wire_staging_mib", "lease_seconds"),
        # Files, collectors, and the process itself.
        *("other_role_config", "otlp_endpoint", "log_format", "metrics", "metrics_compat"),
        "exit_with_parent",
    }
)
"""Keys, certificates, addresses, peers, the model: never by a call."""
