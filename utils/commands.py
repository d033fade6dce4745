"""The commands of `tasuki` and the modules that hold them."""

PACKAGE = (__package__ or "tasuki").split(".")[0]

COMMANDS = {
    "demo": ("client.demo", "ten turns of an agent through a prefill and a decode daemon"),
    "generate": ("client.generate", "answer prompts and print tokens, text and cache hits"),
    "serve": ("front.serve", "one process that prefills and decodes"),
    "prefill": ("prefill_node.main", "a prefill daemon"),
    "decode": ("decode_node.main", "a decode daemon, the front door of a pair"),
    "role": ("client.role", "make a prefill node decode, or the reverse"),
    "bench": ("bench.main", "how near the hardware's floor kernels and models run"),
    "chat": ("client.chat", "a conversation in this terminal, with what each turn had cached"),
    "explain": ("client.explain", "one request's story: what was cached, what was not and why"),
    "top": ("client.top", "a node's hits, arena and faults, live in the terminal"),
    "completion": ("client.completion", "a script that completes this command in your shell"),
    "record": ("client.record", "what happens at a node, kept in a file"),
    "replay": ("client.replay_page", "the page of a recording, without the node"),
    "trace-export": ("client.trace_export", "recorded traffic as an anonymous trace"),
    "doctor": ("client.doctor", "what would keep a daemon from working here, and the mend"),
    "ray": ("client.ray", "nodes on the machines of a Ray cluster"),
    "replay-trace": ("replay.main", "hit rate of the cache on a trace, and its misses by cause"),
}
