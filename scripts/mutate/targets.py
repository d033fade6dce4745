"""The mutated files, and the tests that should notice: those next to a file, which take seconds.

A file is named by the end of its module's name, long enough to be the only one, so that it may
move. A row may name a part of a file, which then has those tests instead of the file's.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scripts.common.package_copy import CPP_TESTS, tracked
from scripts.mutate import cpp_source, python_source
from scripts.mutate.mutant import Mutant

_ROOT = Path(__file__).parents[2]


@cache
def _test_file(name: str) -> str:
    """The one test file of this name, relative to the root."""
    (file,) = _ROOT.glob(f"tests/*/{name}.py")
    return str(file.relative_to(_ROOT))


@dataclass(frozen=True)
class Target:
    """area: as in the table of results. name: a module's, or a symbol's in it. tests: names of
    files below tests/, in the order in which they are tried; CPP_TESTS, the C++ program, first."""

    area: str
    name: str
    tests: tuple[str, ...]

    @property
    def runs(self) -> list[str]:
        return [_test_file(test) for test in self.tests if test != CPP_TESTS]


_FENCES = ("test_fence", "test_severing", "test_clocks", "test_transfer_path")
_CACHE = (
    *(CPP_TESTS, "test_tree_behaviour", "test_tree_policy", "test_cache_failures"),
    *("test_cpp_binding", "test_tree_events", "test_tree_view", "test_reuse_table"),
    *("test_slot_reuse", "test_tree_scale", "test_tree_state_machine"),
)
_ENGINE = (
    *("test_engine", "test_scheduler_failures", "test_engine_pipeline"),
    "test_poisoned_request",
)
_SAMPLING = ("test_model_sampler", "test_logit_adjustments")
_AUTH = ("test_front_server", "test_rate_limits", "test_http_server", "test_tenants")

PYTHON = (
    Target("fences", "evidence", _FENCES),
    Target("fences", "fencing.writer_fence", (*_FENCES, "test_handover_services")),
    Target("fences", "writer_liveness", (*_FENCES, "test_return_path")),
    Target("fences", "write_leases", ("test_receiver_connections", *_FENCES)),
    Target("fences", "connection_breaker", _FENCES),
    Target("fences", "decode_connections", ("test_receiver_connections", "test_handover_services")),
    Target("digests", "windows.digest", ("test_digest", "test_transfer_parts")),
    Target("digests", "windows.descriptors", ("test_transfer_parts", "test_transfer_path")),
    Target(
        "allocation",
        "prefix_cache",
        (
            *("test_slot_reuse", "test_cache_failures", "test_tree_policy", "test_engine"),
            "test_tree_view",
        ),
    ),
    Target("allocation", "arena", ("test_arena", "test_slot_reuse", "test_engine")),
    Target(
        "allocation", "pycache.layout", ("test_arena", "test_transfer_parts", "test_slot_reuse")
    ),
    Target(
        "admission",
        "engine.engine.Engine._admit",
        ("test_arena", *_ENGINE, "test_rates", "test_pulls"),
    ),
    Target(
        "admission", "scheduling.scheduler", (*_ENGINE, "test_siblings", "test_targets_of_pair")
    ),
    Target(
        "admission",
        "waiting_queue",
        ("test_waiting_queue", "test_waiting_queue_model", "test_scheduler_failures"),
    ),
    Target("admission", "caller_shares", ("test_waiting_queue", "test_scheduler_failures")),
    Target("admission", "chunk_shares", ("test_chunk_shares",)),
    Target("admission", "chunk_limit", ("test_chunk_limit",)),
    Target("admission", "siblings", ("test_siblings",)),
    Target("admission", "engine.intake", (*_ENGINE, "test_memory_plan", "test_prompt_scores")),
    Target("admission", "memory_plan", ("test_memory_plan", "test_auto_sizes")),
    Target("admission", "auto_sizes", ("test_auto_sizes",)),
    Target("auth", "api_keys", _AUTH),
    Target("auth", "auth.caller", _AUTH),
    Target("auth", "http.auth", _AUTH),
    Target("auth", "grpc.auth", (*_AUTH, "test_front_service")),
    Target("auth", "rate_limits", _AUTH),
    Target("auth", "auth.access", (*_AUTH, "test_tls")),
    Target("auth", "grpc.server", (*_AUTH, "test_bridge", "test_tls")),
    Target("auth", "server.bind", (*_AUTH, "test_tls")),
    Target("sampling", "sampling.reference", (*_SAMPLING, "test_engine")),
    Target("sampling", "sampling.params", (*_SAMPLING, "test_http_completions")),
    Target("sampling", "gumbel", ("test_model_sampler",)),
    Target("sampling", "logit_adjustments", ("test_logit_adjustments", "test_adjusted_draws")),
    Target("sampling", "top_logprobs", ("test_logit_adjustments",)),
)

CPP = (
    Target("digests", "row_sums", (CPP_TESTS, "test_digest")),
    Target("digests", "row_digester", (CPP_TESTS, "test_digest")),
    Target("allocation", "slab_allocator", _CACHE),
    Target("allocation", "quarantine_table", _CACHE),
    Target("allocation", "allocation_table", _CACHE),
    Target("allocation", "cache.admission", _CACHE),
    Target("allocation", "cache.prefix_cache", _CACHE),
    Target("allocation", "matcher", _CACHE),
    Target("allocation", "lru_policy", _CACHE),
    Target("allocation", "radix_tree", _CACHE),
    Target("allocation", "eviction_candidates", _CACHE),
    Target("allocation", "pins", _CACHE),
)


@dataclass(frozen=True)
class Aim:
    """One mutant with where it is and what should notice it."""

    target: Target
    path: Path
    mutant: Mutant

    @property
    def is_cpp(self) -> bool:
        return self.path.suffix == ".cpp"


def aims(root: Path) -> list[Aim]:
    """Every mutant of every target, in the order of the tables and of the sources."""
    paths = [
        path
        for path in tracked(root)
        if path.parts[0] not in ("tests", "scripts", "bench", "tools")
    ]
    found = []
    for targets, suffix, reader in (
        (PYTHON, ".py", python_source.mutants_of),
        (CPP, ".cpp", cpp_source.mutants_of),
    ):
        for target in targets:
            path, module = _file_of(target.name, paths, suffix)
            for mutant in reader((root / path).read_bytes(), module):
                if _is_in(mutant.edit.symbol, target.name):
                    found.append(Aim(target, path, mutant))
    return found


def _file_of(name: str, paths: list[Path], suffix: str) -> tuple[Path, str]:
    """The one file whose module's name ends as `name` or the front part of it does."""
    words = name.split(".")
    for length in range(len(words), 0, -1):
        end = tuple(words[:length])
        fitting = [
            path
            for path in paths
            if path.suffix == suffix and path.with_suffix("").parts[-length:] == end
        ]
        if len(fitting) > 1:
            raise ValueError(f"{name} is the name of {fitting}: write more of it")
        if fitting:
            return fitting[0], ".".join(end)
    raise ValueError(f"no file of a module {name}: does scripts/mutate/targets.py name it right?")


def _is_in(symbol: str, name: str) -> bool:
    return symbol == name or symbol.startswith(f"{name}.")
