"""The settings of an engine, fixed before it starts, and its role.

Plain values, checked when they are built. Any thread may read them.
"""

import re
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from typing import ClassVar, Literal, get_args

from tasuki.model.attention_split import AttentionSplit
from tasuki.pycache.parts import FP8_ROWS
from tasuki.routing.node_choice import RouteName
from tasuki.utils.options import LONGEST_SECONDS, Auto, Headings, MostAsked, option
from tasuki.utils.system import has_bf16_units
from tasuki.utils.urls import check_bucket, check_url


class Role(Enum):
    """The work of one engine for a request.

    PREFILL: it computes a prompt, stops after the first token and hands over. DECODE: it takes
    hand-overs, and prefills short prompts, and all prompts without a prefill node. FUSED: it does
    everything in one process.
    """

    PREFILL = "prefill"
    DECODE = "decode"
    FUSED = "fused"

    @property
    def working_slots(self) -> int:
        """Return the number of working slots of a request: 1 on a prefill node, else 2. Decoding
        alternates between two slots, so the state one step back stays intact."""
        return 1 if self is Role.PREFILL else 2


SpeculateName = Literal["auto", "mtp", "tree", "mtp+tree", "block", "prediction", "off"]
"""Sources of draft tokens, by their names in the settings."""


DTYPES = ("float32", "bfloat16")
_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")
AUTO_DTYPE = "auto"

MOST_DRAFTS_ON_GPU = 7
"""Most drafts of a row on a GPU. Together with the row's first token they fill a matrix instruction
of most models' heads twice."""


MOST_DRAFTS = 64
"""Most drafts of a row on any device. Drafts beyond it were never accepted, and each is a row of
the model's forward."""


class EngineConfigError(ValueError):
    """An invalid setting. The message names the field and the fix."""


@dataclass(frozen=True)
class EngineConfig:
    """All settings of an engine, fixed before it starts."""

    MOST_ASKED: ClassVar[MostAsked] = {
        "model": "checkpoint folder, or a name on huggingface.co",
        "device": "cpu, cuda or cuda:N",
        "dtype": "auto, float32 or bfloat16",
        "kv_dtype": "dtype of cached keys and values: auto, bf16 or fp8",
        "max_model_len": "most tokens of a prompt and its answer together",
        "arena_mib": "memory of the prefix cache",
        "host_cache_gib": "host memory below it; auto: half of the free memory",
        "max_batch": "requests in one forward",
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
            "step_activations",
            "attention_split",
            "draft_layer",
            "drafter",
            "vision",
            "ngram_table",
            "device",
        ),
        "Memory and batches": (
            *("arena_mib", "gpu_memory_utilization", "host_cache_gib", "picture_rows_mib"),
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
        "folder of a checkpoint, or its name on huggingface.co, as Qwen/Qwen3.5-9B",
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
        "most tokens of a prompt and its answer; not given: the model's own limit",
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
        "dtype of cached keys and values; auto: as dtype; fp8: half the bytes of bf16; "
        "equal on both nodes of a pair",
        ("auto", "bf16", "fp8"),
    )
    ssm_dtype: str = option("float32", "recurrent state", ("float32", "bfloat16"))
    step_activations: str = option(
        "auto",
        "activations of answers beside FP8 weights; auto: bf16; fp8: FP8 rows, in one arithmetic "
        "with prompts; equal on a pair",
        ("auto", "bf16", "fp8"),
    )
    attention_split: str = option(
        "auto",
        "division of a step's keys on a GPU; auto: shares; spans: shared pages are read once for "
        "several rows, not with drafts",
        ("auto", "shares", "spans"),
    )
    draft_layer: str = option(
        "auto",
        "cache of the draft layer (mtp.*); auto: if the checkpoint has one; off: no "
        "memory for it; equal on a pair",
        ("auto", "off"),
    )
    drafter: str | None = option(
        None,
        "folder of a block drafter (DFlash) of the model, in place of its draft layer; CPU only; "
        "equal on a pair",
        unit="DIR",
    )
    vision: str = option(
        "auto",
        "pictures in prompts; auto: if the checkpoint has a vision tower; off: no memory for it",
        ("auto", "off"),
    )
    ngram_table: str = option(
        "disk",
        "rows of an n-gram table, one copy for all ranks: disk maps files; host reads all first",
        ("disk", "host"),
    )
    device: str = option(
        "cpu", "device of weights, arena and forwards: cpu, cuda or cuda:N", unit="DEVICE"
    )
    arena_mib: int | Auto = option(
        Auto.AUTO,
        "MiB of KV pages and state slots, for each rank; auto: all free memory of a GPU, "
        "512 on a CPU",
    )
    gpu_memory_utilization: float | None = option(
        None,
        "most of the GPU's memory for this process, 0 to 1, if arena_mib is auto; not "
        "given: all free memory",
        aliases=("--mem-fraction-static",),
    )
    host_cache_gib: float | Auto | None = option(
        None,
        "GiB of host memory for evicted cache entries, of all ranks; auto: half of the "
        "free memory; not given: none",
    )
    picture_rows_mib: int = option(
        512, "MiB of computed rows of pictures, kept for prompts that show them again"
    )
    disk_cache: str | None = option(
        None,
        "folder of a disk cache; it outlives a restart; needs disk_cache_gib and host_cache_gib",
        unit="DIR",
    )
    disk_cache_gib: float | None = option(None, "room taken in disk_cache, GiB of all ranks")
    disk_write_budget: float | None = option(
        None, "long-run writes to disk_cache, MB/s, by the drive's endurance; not given: no bound"
    )
    remote_cache: str | None = option(
        None,
        "s3://BUCKET[/PREFIX], a cache for all nodes of a model; needs remote_cache_gib, "
        "host_cache_gib, tasuki[s3]",
        unit="URL",
    )
    remote_cache_gib: float | None = option(
        None, "GiB of remote_cache in this node's index; entries of other nodes are found too"
    )
    remote_write_budget: float | None = option(
        None, "long-run writes to remote_cache, MB/s; not given: no bound"
    )
    remote_endpoint: str | None = option(
        None, "URL of the store with remote_cache; not given: AWS_ENDPOINT_URL, or else AWS itself"
    )
    remote_credentials: str | None = option(
        None,
        "private file like ~/.aws/credentials, profile default; not given: "
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY",
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
        "most milliseconds between an answer's tokens: bounds the batch and prompt "
        "chunks; not given: no bound",
    )
    route: str = option(
        "auto",
        "node of a prompt: auto or cost by estimated seconds, sticky by session, "
        "fewest-rooms or fixed by load",
        get_args(RouteName),
    )
    local_prefill_tokens: int = option(
        128, "decode role: uncached suffixes up to this long are prefilled here"
    )
    pull_tokens: int = option(
        32, "prefill role: fetch a decode node's cached prefix if it is so many tokens longer"
    )
    queue_timeout: float = option(
        60.0, "most seconds of a request in a queue before its prompt begins, on each node"
    )
    watchdog_timeout: float = option(
        300.0,
        "most seconds of an engine step; after them all requests end with an error and "
        "the node is unhealthy",
    )
    ttft_target: float | None = option(
        None,
        "refuse a queued prompt at once if its first token would take longer than "
        "SECONDS; not given: never",
        unit="SECONDS",
    )
    speculate: str = option(
        "auto",
        "source of drafts: prediction (the request's), mtp (draft layer), block, tree (cached "
        "texts); auto: mtp if on a GPU",
        get_args(SpeculateName),
    )
    draft_tokens: int = option(
        4,
        "drafts of a step and answer at most, 64 or fewer; on a GPU 7 or fewer",
        aliases=("--num-speculative-tokens",),
    )
    draft_count: str = option(
        "measured",
        "number of drafts in a step; measured: the fastest number by measured steps; "
        "most: always draft_tokens",
        ("measured", "most"),
    )
    cache_policy: str = option(
        "auto", "eviction order of the prefix cache", ("lru", "value", "auto")
    )
    threads: int = option(1, "CPU threads of the forward, of each rank")
    tensor_parallel: int = option(
        1,
        "number of ranks; each is a process with a slice of the weights, its own arena "
        "and its own visible GPU",
        aliases=("--tensor-parallel-size", "--tp-size"),
    )
    expert_parallel: bool = option(
        False,
        "each routed expert is whole on one of the ranks, instead of a part of it on every rank",
        aliases=("--enable-expert-parallel",),
    )
    rank_timeout: float = option(
        10.0,
        "seconds without a sign of life from a rank until the node ends; a rank's death "
        "ends it at once",
    )

    def __post_init__(self) -> None:
        if not _DEVICE.fullmatch(self.device):
            raise EngineConfigError(f"device must be cpu, cuda or cuda:N, not {self.device!r}")
        for name in (
            *("arena_mib", "max_batch", "draft_tokens", "threads", "tensor_parallel"),
            "picture_rows_mib",
        ):
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
        if self.attention_split == "spans" and self.device == "cpu":
            raise EngineConfigError(
                "attention_split is spans, and a CPU attends each row alone: leave "
                "--attention-split out, or give --device cuda"
            )
        if self.expert_parallel and self.tensor_parallel == 1:
            raise EngineConfigError(
                "expert_parallel shares experts out among ranks: give --tensor-parallel too"
            )
        host = self.host_cache_gib
        if host is not None and not isinstance(host, Auto) and not 0 < host < float("inf"):
            raise EngineConfigError(f"host_cache_gib must be auto or above 0, not {host}")
        self._check_drafter()
        self._check_disk()
        self._check_remote()
        for tier in ("disk", "remote"):
            for name in (f"{tier}_cache_gib", f"{tier}_write_budget"):
                value = getattr(self, name)
                if value is not None and not 0 < value < float("inf"):
                    raise EngineConfigError(f"{name} must be above 0, not {value}")
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

    def _check_drafter(self) -> None:
        if self.drafter is None:
            if self.drafts_by_block:
                raise EngineConfigError(
                    "speculate is block, and there is no drafter: give its folder with --drafter"
                )
            return
        if self.drafter == "":
            raise EngineConfigError("drafter is empty: give a folder, or leave it out")
        if self.drafts_by_layer:
            raise EngineConfigError(
                f"speculate is {self.speculate}, and a drafter takes the draft layer's place: give "
                "--speculate block, or leave --drafter out"
            )
        if self.device.split(":")[0] != "cpu":
            raise EngineConfigError(
                f"device is {self.device}, for which block drafters have no kernels, as yet: give "
                "--device cpu, or leave --drafter out"
            )
        if self.tensor_parallel > 1:
            raise EngineConfigError(
                f"tensor_parallel is {self.tensor_parallel}, and a block drafter runs on one rank, "
                "as yet: give --tensor-parallel 1, or leave --drafter out"
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

    def _check_remote(self) -> None:
        if (self.remote_cache is None) != (self.remote_cache_gib is None):
            raise EngineConfigError("remote_cache and remote_cache_gib need each other: give both")
        try:
            if self.remote_cache is not None:
                check_bucket("remote_cache", self.remote_cache)
            if self.remote_endpoint is not None:
                check_url("remote_endpoint", self.remote_endpoint, "https://s3.example")
        except ValueError as error:
            raise EngineConfigError(str(error)) from error
        if self.remote_cache is not None and self.host_cache_gib is None:
            raise EngineConfigError("remote_cache is below host memory: give host_cache_gib too")
        if self.remote_cache is not None and self.tensor_parallel > 1:
            raise EngineConfigError(
                "remote_cache is of one rank, as yet: leave it out, or give --tensor-parallel 1"
            )
        for name in ("remote_write_budget", "remote_endpoint", "remote_credentials"):
            if getattr(self, name) is not None and self.remote_cache is None:
                raise EngineConfigError(f"{name} is of remote_cache: give that too")

    @property
    def compute_dtype(self) -> str:
        """Return the dtype of the computation. `auto` is float32 on a CPU without bf16 units, else
        bfloat16."""
        if self.dtype != AUTO_DTYPE:
            return self.dtype
        on_cpu = self.device.split(":")[0] == "cpu"
        return "float32" if on_cpu and not has_bf16_units() else "bfloat16"

    def of_a_gpu(self) -> "EngineConfig":
        """Return the config with an `auto` dtype resolved as on a GPU, even if this machine
        computes on a CPU."""
        return replace(self, dtype="bfloat16") if self.dtype == AUTO_DTYPE else self

    @property
    def stored_kv(self) -> str:
        """Return the dtype of keys and values in pages, named as in `pycache.layout`."""
        return {"auto": self.compute_dtype, "bf16": "bfloat16", "fp8": FP8_ROWS}[self.kv_dtype]

    @property
    def rounded_steps(self) -> str:
        """Return `step_activations` with auto resolved, as the contract names it."""
        return "bf16" if self.step_activations == "auto" else self.step_activations

    @property
    def divided_keys(self) -> AttentionSplit:
        """Return `attention_split` with auto resolved."""
        return AttentionSplit("shares" if self.attention_split == "auto" else self.attention_split)

    def drafting(self, draft_layers: int, *, on_gpu: bool) -> "EngineConfig":
        """Return the config with `speculate` resolved. With `auto`, a block drafter is used if
        there is one. Without, a GPU without tensor parallelism uses the model's draft layer, if the
        arena has one. Otherwise a GPU reserves no memory for drafts."""
        if self.speculate == "auto" and self.drafter is not None:
            return replace(self, speculate="block")
        layer = on_gpu and draft_layers and self.tensor_parallel == 1
        return replace(self, speculate="mtp") if self.speculate == "auto" and layer else self

    @property
    def drafts_by_layer(self) -> bool:
        """Return True if the model's own draft layer proposes tokens."""
        return "mtp" in self.speculate.split("+")

    @property
    def drafts_by_block(self) -> bool:
        """Return True if a block drafter proposes tokens."""
        return self.speculate == "block"

    @property
    def served_draft_layer(self) -> str:
        """Return `draft_layer`, and off with a block drafter: pages have entries of one of them."""
        return self.draft_layer if self.drafter is None else "off"

    @property
    def drafts_from_tree(self) -> bool:
        """Return True if drafts also come from earlier occurrences of the same tokens: in the
        request itself, or in other requests with its salt."""
        return "tree" in self.speculate.split("+")

    @property
    def drafts_on_gpu(self) -> int:
        """Return the largest number of drafts in a row, for a GPU's memory plan. 0 unless drafts
        were requested, because their graphs and the data kept for folds (storing states after
        accepted drafts) take memory."""
        return 0 if self.speculate in ("auto", "off") else self.draft_tokens

    def usable_of(self, free: int, total: int) -> int:
        """Return the bytes of a GPU available to this process, at most `gpu_memory_utilization` of
        all if set. free, total: the GPU's free and total bytes."""
        part = self.gpu_memory_utilization
        return free if part is None else min(free, int(total * part))

    @property
    def max_itl_seconds(self) -> float | None:
        return None if self.max_itl_ms is None else self.max_itl_ms / 1000
