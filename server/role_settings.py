"""What a caller may set of a node's new role, and what only whoever starts the node may.

Owns the two lists. Pure. Invariant: every setting of a node stands in exactly one of them (a test
compares), so that a new one is nobody's to change before somebody has thought of it.
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
        # Who may ask, and for how much.
        *("api_key", "api_keys", "share_cache", "max_message_mib"),
        *("requests_per_minute", "tokens_per_minute"),
        *("requests_per_key", "sessions_per_key", "watchers_per_key", "max_watchers"),
        *("max_connections", "allowed_hosts"),
        *("tls_cert", "tls_key", "tls_client_ca", "insecure", "gateway"),
        # Where the node is, and whom it trusts with prompts and memory.
        *("bind", "http_bind", "handover_bind", "name", "advertise", "etcd", "etcd_prefix"),
        *("prefill", "prefill_file", "prefill_ca"),
        # What it serves, and what its peers must agree to.
        *("model", "served_model_name", "dtype", "ssm_dtype", "device", "transport"),
        *("wire_kv", "wire_state", "wire_staging_mib", "lease_seconds"),
        # What it reads and writes elsewhere, and how its process is kept.
        *("other_role_config", "otlp_endpoint", "log_format", "metrics", "metrics_compat"),
        "exit_with_parent",
    }
)
"""Keys, certificates, addresses, peers, the model: never by a call."""
