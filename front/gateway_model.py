"""What a gateway is told of the model that a node serves. Plain values, any thread."""

import json
from dataclasses import dataclass
from pathlib import Path

from ..engine.config import EngineConfig
from ..engine.engine import Engine
from ..model.config import ModelConfig
from .config import FrontConfig


@dataclass(frozen=True)
class GatewayModel:
    """folder: the checkpoint's. max_tokens: prompt and answer together. eos_ids end an answer
    unless it ignores them."""

    folder: Path
    name: str
    model_type: str
    architectures: tuple[str, ...]
    dtype: str
    vocab_size: int
    max_tokens: int
    eos_ids: tuple[int, ...]

    @staticmethod
    def of(
        engine_config: EngineConfig, front_config: FrontConfig, model: ModelConfig, engine: Engine
    ) -> "GatewayModel":
        folder = Path(engine_config.model).resolve()
        published = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return GatewayModel(
            folder=folder,
            name=front_config.served_model_name or folder.name,
            model_type=model.model_type,
            architectures=tuple(published.get("architectures") or ()),
            dtype=engine_config.dtype,
            vocab_size=model.vocab,
            max_tokens=engine.max_request_tokens,
            eos_ids=model.eos_ids,
        )
