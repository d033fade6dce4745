"""Everything that shapes an engine, fixed before it starts."""

from dataclasses import dataclass

from tasuki.utils.config.auto import Auto
from tasuki.utils.config.options import option


class EngineConfigError(ValueError):
    """A setting that cannot work; the message names the field and the mend."""


@dataclass(frozen=True)
class EngineConfig:
    model: str = option("", "folder of a Qwen3.5-family checkpoint", aliases=("--model-path",))
    dtype: str = option(
        "bfloat16", "weights, activations, KV and conv state", ("float32", "bfloat16")
    )
    ssm_dtype: str = option("float32", "recurrent state", ("float32", "bfloat16"))
    device: str = option("cpu", "where weights, arena and forwards are: cpu, cuda or cuda:N")
    arena_mib: int | Auto = option(
        Auto.AUTO,
        "KV pages and state slots together, MiB; auto: of a GPU all that is free beside the rest, "
        "on a CPU 512",
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
        "milliseconds that prompts may make answers wait for a token: chunks beside answers become "
        "as small as that asks, down to 64 tokens; not given: chunks are whole",
    )
    route: str = option(
        "learnt",
        "what decides where a prompt is computed, and whether a prefill node pulls: rates, once "
        "some are measured, or always the two numbers of tokens that follow",
        ("learnt", "fixed"),
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
    cache_policy: str = option("auto", "what the prefix cache evicts", ("lru", "value", "auto"))
    threads: int = option(1, "CPU threads of the forward")

    def __post_init__(self) -> None:
        if self.device.split(":")[0] not in ("cpu", "cuda"):
            raise EngineConfigError(f"device must be cpu, cuda or cuda:N, not {self.device!r}")
        for name in ("arena_mib", "max_batch", "threads"):
            value = getattr(self, name)
            if not isinstance(value, Auto) and value < 1:
                raise EngineConfigError(f"{name} must be at least 1, not {value}")
        if not 0 < self.queue_timeout < float("inf"):
            raise EngineConfigError(
                f"queue_timeout must be a positive number of seconds, not {self.queue_timeout}"
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

    @property
    def max_itl_seconds(self) -> float | None:
        return None if self.max_itl_ms is None else self.max_itl_ms / 1000
