"""How a request is sampled where it does not say: the checkpoint's generation_config.json, as vLLM
reads it, or OpenAI's defaults.

Owns the choice between them. Immutable; read once, before a node serves.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasuki.model.ops.sampling.params import SamplingParams

CHECKPOINT = "auto"
NONE = "vllm"
FILE = "generation_config.json"


class GenerationConfigError(ValueError):
    """generation_config.json cannot be used; the message names the file, the field and the mend."""


@dataclass(frozen=True)
class SamplingDefaults:
    """Of an HTTP request that leaves a field out. As in SamplingParams. max_new_tokens: of any
    answer at most, whatever its request asks for, as vLLM takes it; None: no such bound. Raises
    ValueError that begins with the field's name where no request could ask for it."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")
        SamplingParams(**asdict(self) | {"max_new_tokens": self.max_new_tokens or 1})

    def bounded(self, new_tokens: int) -> int:
        """Of an answer that would have so many."""
        return new_tokens if self.max_new_tokens is None else min(new_tokens, self.max_new_tokens)

    @staticmethod
    def load(choice: str, model: Path) -> "SamplingDefaults":
        """choice: `auto` (the file of the checkpoint folder `model`, where it has one), `vllm`
        (OpenAI's defaults), or a folder with the file. Raises GenerationConfigError."""
        if choice == NONE:
            return OPENAI_DEFAULTS
        path = (model if choice == CHECKPOINT else Path(choice)) / FILE
        if choice == CHECKPOINT and not path.exists():
            return OPENAI_DEFAULTS
        values = _read(path)
        try:
            return SamplingDefaults(
                temperature=_number(values, "temperature", 1.0),
                top_p=_number(values, "top_p", 1.0),
                # As in requests, -1 is every token.
                top_k=max(0, int(_number(values, "top_k", 0))),
                min_p=_number(values, "min_p", 0.0),
                repetition_penalty=_number(values, "repetition_penalty", 1.0),
                max_new_tokens=(
                    None
                    if values.get("max_new_tokens") is None
                    else int(_number(values, "max_new_tokens", 0))
                ),
            )
        except ValueError as error:
            raise GenerationConfigError(
                f"{path}: {error}; mend it, or pass --generation-config {NONE}"
            ) from error


OPENAI_DEFAULTS = SamplingDefaults()
"""Which OpenAI's clients rely on; gRPC's are greedy."""


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GenerationConfigError(
            f"{path} cannot be read ({error.strerror}): --generation-config is {CHECKPOINT}, "
            f"{NONE}, or a folder with the file"
        ) from error
    except ValueError as error:
        raise GenerationConfigError(f"{path} is not JSON ({error}): copy the file again") from error
    if not isinstance(values, dict):
        raise GenerationConfigError(f"{path} is not a JSON object: copy the file again")
    return values


def _number(values: dict[str, Any], name: str, default: float) -> float:
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, not {value!r:.40}")
    return value
