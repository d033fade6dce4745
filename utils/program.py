"""The program: its commands with their modules, its version, and the message of a fatal error.

A process's fatal error is one line; a bug also has a traceback.
"""

from importlib import metadata

PACKAGE = (__package__ or "tasuki").split(".")[0]

COMMANDS = {
    "demo": ("cli.demo", "ten turns of an agent through a prefill and a decode daemon"),
    "generate": ("cli.generate", "answer prompts and print tokens, text and cache hits"),
    "serve": ("server.daemon.fused", "serve a model with one process for prefill and decode"),
    "prefill": ("prefill_node.main", "a prefill daemon"),
    "decode": ("decode_node.main", "a decode daemon, the front door of a pair"),
    "role": ("cli.role", "make a prefill node decode, or the reverse"),
    "quantise": ("cli.quantise", "a BF16 checkpoint into a published FP8 or NVFP4 format"),
    "bench": ("bench.main", "how near the hardware's floor kernels and models run"),
    "chat": ("cli.chat", "chat in this terminal; each turn shows its cached tokens"),
    "explain": ("cli.explain", "explain one request: cached tokens, missed tokens and the causes"),
    "top": ("cli.top", "a node's hits, arena and faults, live in the terminal"),
    "dashboard": ("cli.fleet.main", "one page for many nodes"),
    "completion": ("cli.completion", "print a shell script for completion of this command"),
    "record": ("cli.recording.record", "record a node's events in a file"),
    "replay": ("cli.recording.replay_page", "the page of a recording, without the node"),
    "trace-export": ("cli.recording.trace_export", "recorded traffic as an anonymous trace"),
    "doctor": ("cli.doctor.main", "check this machine for problems of a daemon, with fixes"),
    "conformance": (
        "cli.conformance.main",
        "check any server's endpoint against its APIs",
    ),
    "ray": ("cli.ray.main", "nodes on the machines of a Ray cluster"),
    "simulate": ("bench.fleet.main", "a trace through a fleet of prefill nodes, in virtual time"),
    "replay-trace": (
        "bench.replay.main",
        "hit rate of the cache on a trace, and its misses by cause",
    ),
}


def package_version() -> str:
    try:
        return metadata.version("tasuki")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def is_expected(error: Exception) -> bool:
    """Return True for tasuki's typed errors and the system's errors: their messages name the fix.
    Return False for any other error, a bug with a traceback."""
    return isinstance(error, OSError) or type(error).__module__.startswith(f"{PACKAGE}.")


def line_of(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
