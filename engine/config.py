"""The settings of an engine, fixed before it starts, and its role.

Plain values, checked when they are built. Any thread may read them.
"""

from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from typing import ClassVar, Literal, get_args

from tasuki.pycache.layout import FP8_ROWS
from tasuki.routing.node_choice import RouteName
from tasuki.utils.options import LONGEST_SECONDS, Auto, Headings, MostAsked, option
from tasuki.utils.system import has_bf16_units


class Role(Enum):
    """The work of one engine for a request.

    PREFILL stops after the first token and hands over. DECODE takes hand-overs. It prefills short
    prompts, and prompts that lost their prefill node. FUSED does everything in one process.
    """

    PREFILL = "prefill"
    DECODE = "decode"
    FUSED = "fused"

    @property
    def working_slots(self) -> int:
        """Return the number of working slots of a request. Decoding alternates between two slots,
        so the state one step back stays intact."""
        return 1 if self is Role.PREFILL else 2


SpeculateName = Literal["auto", "mtp", "tree", "mtp+tree", "prediction", "off"]
"""Sources of drafts, by their names in the settings."""


DTYPES = ("float32", "bfloat16")
AUTO_DTYPE = "auto"

MOST_DRAFTS_ON_GPU = 7
"""The most drafts of a row on a GPU. With its first token they fill a matrix instruction of most
models' heads twice."""


MOST_DRAFTS = 64
"""The most drafts of a row on any device. More drafts were never accepted, and each is a row of the
model."""


class EngineConfigError(ValueError):
    """An invalid setting. The message names the field and the fix."""


@dataclass(frozen=True)
class EngineConfig:
    """All settings of an engine, fixed before it starts."""

    MOST_ASKED: ClassVar[MostAsked] = {
        "model": "checkpoint folder, or a name on huggingface.co",
        "device": "cpu, cuda or cuda:N",
        "dtype": "auto, float32 or bfloat16",
        "kv_dtype": "of cached keys and values: auto, bf16 or fp8",
        "max_model_len": "most tokens of a prompt and its answer together",
        "arena_mib": "memory of the prefix cache",
        "host_cache_gib": "host memory below it; auto: half of what is free",
        "max_batch": "requests that are computed together",
        "max_itl_ms": "longest time between two tokens of an answer",
    }
    HEADINGS: ClassVar[Headings] = {
        "Model": (
            "model",
            "revision",
            "max_model_len",
            "dtype",
            "kv_dtype",
            "ssm_dtype",
            "draft_layer",
            "device",
        ),
        "Memory and batches": (
            *("arena_mib", "gpu_memory_utilization", "host_cache_gib"),
            *("disk_cache", "disk_cache_gib", "disk_write_budget"),
            *("remote_cache", "remote_cache_gib", "remote_write_budget"),
            *("remote_endpoint", "remote_credentials"),
            *("max_batch", "prefill_chunk_tokens"),
            *("max_itl_ms", "queue_timeout", "ttft_target", "watchdog_timeout", "cache_policy"),
            *("speculate", "draft_tokens", "draft_count", "threads"),
        ),
        "Several ranks": ("tensor_parallel", "expert_parallel", "rank_timeout"),
        "Hand-over": ("route", "local_prefill_tokens", "pull_tokens"),
    }

    model: str = option(
        "",
        "folder of a Qwen3.5-family checkpoint, or its name on huggingface.co, as Qwen/Qwen3.5-9B",
        aliases=("--model-path",),
        argument="MODEL",
        unit="DIR|NAME",
    )
    # A new setting never takes an old one's place in a call.
    _: KW_ONLY
    revision: str = option(
        "", "branch, tag or commit of a model of huggingface.co; none: its main branch"
    )
    max_model_len: int | None = option(
        None,
        "tokens of a prompt and its answer at most; not given: what the model was made for",
        aliases=("--context-length",),
    )
    dtype: str = option(
        AUTO_DTYPE,
        "weights, activations and conv state; auto: bfloat16, and float32 on a CPU without units "
        "for it; alike on nodes of a pair",
        (AUTO_DTYPE, *DTYPES),
    )
    kv_dtype: str = option(
        "auto",
        "keys and values in pages, of the draft layer too; auto: as dtype; fp8: a byte a number "
        "and one a row, half of bf16, rounded once where they are written; alike on nodes of a "
        "pair",
        ("auto", "bf16", "fp8"),
    )
    ssm_dtype: str = option("float32", "recurrent state", ("float32", "bfloat16"))
    draft_layer: str = option(
        "auto",
        "entries of the layer that drafts tokens (mtp.* of a checkpoint) beside KV; auto: where "
        "there is one; off: none, and no memory for them; alike on nodes of a pair",
        ("auto", "off"),
    )
    device: str = option(
        "cpu", "where weights, arena and forwards are: cpu, cuda or cuda:N", unit="DEVICE"
    )
    arena_mib: int | Auto = option(
        Auto.AUTO,
        "KV pages and state slots of a rank together, MiB; auto: of a GPU all that is free beside "
        "the rest, on a CPU 512",
    )
    gpu_memory_utilization: float | None = option(
        None,
        "part of the GPU's memory that this process takes at most where arena_mib is auto; not "
        "given: all that is free; on a CPU it means nothing",
        aliases=("--mem-fraction-static",),
    )
    host_cache_gib: float | Auto | None = option(
        None,
        "host memory below the arena, GiB of all ranks, which keeps what the arena has no room "
        "for, in any role, a decode node's turn ends included; auto: "
        "half of what is available; not given: none",
    )
    disk_cache: str | None = option(
        None,
        "folder on a disk below host memory, for KV and tokens of prompts, which a restarted node "
        "with the same model finds again: needs disk_cache_gib and host_cache_gib",
        unit="DIR",
    )
    disk_cache_gib: float | None = option(None, "room taken in disk_cache, GiB of all ranks")
    disk_write_budget: float | None = option(
        None,
        "written to disk_cache in the long run, MB/s, as the drive's endurance allows; not given: "
        "whatever host memory gets",
    )
    remote_cache: str | None = option(
        None,
        "s3://BUCKET[/PREFIX] below host memory, and below disk_cache, which nodes of the same "
        "model share: KV and tokens of prompts; needs remote_cache_gib, host_cache_gib and "
        "tasuki[s3]",
        unit="URL",
    )
    remote_cache_gib: float | None = option(
        None, "of remote_cache, GiB that this node knows at a time; what others put there it finds"
    )
    remote_write_budget: float | None = option(
        None, "written to remote_cache in the long run, MB/s; not given: whatever comes there"
    )
    remote_endpoint: str | None = option(
        None,
        "URL of the store with remote_cache; not given: AWS_ENDPOINT_URL, or else AWS itself",
    )
    remote_credentials: str | None = option(
        None,
        "file as ~/.aws/credentials, its profile default, that its owner alone may read; not "
        "given: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the environment",
    )
    max_batch: int | Auto = option(
        Auto.AUTO,
        "requests in one forward; auto: on a GPU as many as the arena has room for, 256 at most, "
        "on a CPU 64",
        aliases=("--max-num-seqs", "--max-running-requests"),
    )
    prefill_chunk_tokens: int = option(
        512,
        "prompt tokens in one forward; a multiple of 64",
        aliases=("--max-num-batched-tokens", "--chunked-prefill-size"),
    )
    max_itl_ms: float | None = option(
        None,
        "milliseconds between two tokens of an answer: nobody joins those that run where a step of "
        "them all would take longer, and chunks of prompts beside answers become as small as that "
        "asks, down to 64 tokens; not given: steps take as long as they take",
    )
    route: str = option(
        "auto",
        "where a prompt is computed. Here or on a prefill node, and whether that one pulls: by "
        "measured rates; fixed: always by the two numbers of tokens that follow. On which of "
        "several: the cheapest in seconds, by what each holds and has to do (cost; auto: by a hash "
        "of its session while that is not known), the one of that hash (sticky), the one with the "
        "fewest prompts (fewest-rooms, fixed)",
        get_args(RouteName),
    )
    local_prefill_tokens: int = option(
        128, "decode role: uncached suffixes up to this long are prefilled here"
    )
    pull_tokens: int = option(
        32, "prefill role: so many tokens that the decode node has in advance are fetched from it"
    )
    queue_timeout: float = option(
        60.0, "seconds that a request may wait before its prompt is begun, on each node that has it"
    )
    watchdog_timeout: float = option(
        300.0,
        "seconds that a step of the engine may take; behind them every request ends with an error, "
        "and the node refuses new ones and reports that it is ill",
    )
    ttft_target: float | None = option(
        None,
        "seconds: a prompt whose first token is not expected within that is refused at once, with "
        "the time after which to ask again, while others wait before it; a request may name its "
        "own; not given: none is refused for that",
        unit="SECONDS",
    )
    speculate: str = option(
        "auto",
        "what answers are drafted from, so that a step may give several tokens of one, all of them "
        "the same as without: prediction, what a request says of its answer; mtp, that and the "
        "model's own draft layer; tree, that and what stands elsewhere behind the same tokens; "
        "mtp+tree, all of these, the layer where nothing agrees that stands elsewhere; "
        "auto: on a GPU as mtp where the checkpoint has such a layer, on a CPU as prediction; off: "
        "nothing",
        get_args(SpeculateName),
    )
    draft_tokens: int = option(
        4,
        "drafts of a step and answer at most, 64 or fewer; on a GPU 7 or fewer",
        aliases=("--num-speculative-tokens",),
    )
    draft_count: str = option(
        "measured",
        "how many drafts a step has, up to draft_tokens; measured: as many as give the most tokens "
        "a second, by what steps took and which drafts held, and none where they gain nothing; "
        "most: all there are, whatever they cost",
        ("measured", "most"),
    )
    cache_policy: str = option("auto", "what the prefix cache evicts", ("lru", "value", "auto"))
    threads: int = option(1, "CPU threads of the forward, of each rank")
    tensor_parallel: int = option(
        1,
        "ranks that share the model out among them, each a process with its own slices of the "
        "weights and its own arena, and on GPUs one of those that are visible",
        aliases=("--tensor-parallel-size", "--tp-size"),
    )
    expert_parallel: bool = option(
        False,
        "each routed expert is whole on one of the ranks, instead of a part of it on every rank",
        aliases=("--enable-expert-parallel",),
    )
    rank_timeout: float = option(
        10.0, "seconds of a rank's silence that end the node; its death ends it at once"
    )

    def __post_init__(self) -> None:
        if self.device.split(":")[0] not in ("cpu", "cuda"):
            raise EngineConfigError(f"device must be cpu, cuda or cuda:N, not {self.device!r}")
        for name in ("arena_mib", "max_batch", "draft_tokens", "threads", "tensor_parallel"):
            value = getattr(self, name)
            if not isinstance(value, Auto) and value < 1:
                raise EngineConfigError(f"{name} must be at least 1, not {value}")
        if self.draft_tokens > MOST_DRAFTS:
            raise EngineConfigError(
                f"draft_tokens must be at most {MOST_DRAFTS}, not {self.draft_tokens}"
            )
        if self.max_model_len is not None and self.max_model_len < 2:
            raise EngineConfigError(f"max_model_len must be at least 2, not {self.max_model_len}")
        part = self.gpu_memory_utilization
        if part is not None and not 0 < part <= 1:
            raise EngineConfigError(f"gpu_memory_utilization must be in (0, 1], not {part}")
        if part is not None and not isinstance(self.arena_mib, Auto):
            raise EngineConfigError(
                "gpu_memory_utilization decides arena_mib: give one of them, not both"
            )
        if (
            self.stored_kv not in (self.compute_dtype, FP8_ROWS)
            and self.device.split(":")[0] != "cpu"
        ):
            raise EngineConfigError(
                f"kv_dtype is {self.kv_dtype} and dtype {self.compute_dtype}, and a GPU keeps keys "
                "and values in its dtype or as FP8 rows: leave --kv-dtype out, give --kv-dtype fp8 "
                f"or --device cpu, not {self.device}"
            )
        if self.expert_parallel and self.tensor_parallel == 1:
            raise EngineConfigError(
                "expert_parallel shares experts out among ranks: give --tensor-parallel too"
            )
        host = self.host_cache_gib
        if host is not None and not isinstance(host, Auto) and not 0 < host < float("inf"):
            raise EngineConfigError(f"host_cache_gib must be auto or above 0, not {host}")
        self._check_disk()
        self._check_remote()
        for name in ("queue_timeout", "watchdog_timeout", "ttft_target", "rank_timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds <= LONGEST_SECONDS:
                raise EngineConfigError(
                    f"{name} must be a positive number of seconds, {LONGEST_SECONDS:g} at most, "
                    f"not {seconds}"
                )
        if self.max_itl_ms is not None and not 0 < self.max_itl_ms < float("inf"):
            raise EngineConfigError(
                f"max_itl_ms must be a positive number of milliseconds, not {self.max_itl_ms}"
            )
        if self.local_prefill_tokens < 0:
            raise EngineConfigError("local_prefill_tokens must be 0 or more")
        if self.pull_tokens < 1:
            raise EngineConfigError(f"pull_tokens must be at least 1, not {self.pull_tokens}")
        if self.prefill_chunk_tokens < 64 or self.prefill_chunk_tokens % 64:
            raise EngineConfigError(
                "prefill_chunk_tokens must be a positive multiple of 64, "
                f"not {self.prefill_chunk_tokens}"
            )

    def _check_disk(self) -> None:
        if (self.disk_cache is None) != (self.disk_cache_gib is None):
            raise EngineConfigError("disk_cache and disk_cache_gib need each other: give both")
        if self.disk_cache == "":
            raise EngineConfigError("disk_cache is empty: give a folder, or leave it out")
        if self.disk_cache is not None and self.host_cache_gib is None:
            raise EngineConfigError("disk_cache is below host memory: give host_cache_gib too")
        if self.disk_write_budget is not None and self.disk_cache is None:
            raise EngineConfigError("disk_write_budget is of disk_cache: give that too")
        for name in ("disk_cache_gib", "disk_write_budget"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise EngineConfigError(f"{name} must be above 0, not {value}")

    def _check_remote(self) -> None:
        if (self.remote_cache is None) != (self.remote_cache_gib is None):
            raise EngineConfigError("remote_cache and remote_cache_gib need each other: give both")
        if self.remote_cache is not None and self.host_cache_gib is None:
            raise EngineConfigError("remote_cache is below host memory: give host_cache_gib too")
        if self.remote_cache is not None and self.tensor_parallel > 1:
            raise EngineConfigError(
                "remote_cache is of one rank, as yet: leave it out, or give --tensor-parallel 1"
            )
        for name in ("remote_write_budget", "remote_endpoint", "remote_credentials"):
            if getattr(self, name) is not None and self.remote_cache is None:
                raise EngineConfigError(f"{name} is of remote_cache: give that too")
        for name in ("remote_cache_gib", "remote_write_budget"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise EngineConfigError(f"{name} must be above 0, not {value}")

    @property
    def compute_dtype(self) -> str:
        """Return the dtype of the computation on this machine, with `auto` resolved."""
        if self.dtype != AUTO_DTYPE:
            return self.dtype
        on_cpu = self.device.split(":")[0] == "cpu"
        return "float32" if on_cpu and not has_bf16_units() else "bfloat16"

    def of_a_gpu(self) -> "EngineConfig":
        """Return the config with an `auto` dtype resolved as on a GPU, whichever device computes
        here."""
        return replace(self, dtype="bfloat16") if self.dtype == AUTO_DTYPE else self

    @property
    def stored_kv(self) -> str:
        """Return the dtype of keys and values in pages, as `pycache.layout` names it."""
        return {"auto": self.compute_dtype, "bf16": "bfloat16", "fp8": FP8_ROWS}[self.kv_dtype]

    def drafting(self, draft_layers: int, *, on_gpu: bool) -> "EngineConfig":
        """Return the config with `speculate` resolved. With `auto`, a GPU without tensor
        parallelism uses the model's draft layer, if the arena has one. Otherwise a GPU reserves no
        memory for drafts."""
        layer = on_gpu and draft_layers and self.tensor_parallel == 1
        return replace(self, speculate="mtp") if self.speculate == "auto" and layer else self

    @property
    def drafts_by_layer(self) -> bool:
        """Return whether the model's own draft layer proposes tokens."""
        return "mtp" in self.speculate.split("+")

    @property
    def drafts_from_tree(self) -> bool:
        """Return whether drafts also come from earlier occurrences of the same tokens: in the
        request itself, or in other requests of its salt."""
        return "tree" in self.speculate.split("+")

    @property
    def drafts_on_gpu(self) -> int:
        """Return the most drafts of a row that a GPU reserves memory for. 0 unless drafts were
        requested, because their graphs and the data kept for folds take memory."""
        return 0 if self.speculate in ("auto", "off") else self.draft_tokens

    def usable_of(self, free: int, total: int) -> int:
        """Return the bytes of a GPU available to this process. free, total: the GPU's bytes."""
        part = self.gpu_memory_utilization
        return free if part is None else min(free, int(total * part))

    @property
    def max_itl_seconds(self) -> float | None:
        return None if self.max_itl_ms is None else self.max_itl_ms / 1000
