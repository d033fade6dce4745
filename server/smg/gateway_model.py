"""The model served by a node, as reported to a gateway. Plain values, any thread.

Imports nothing of the gateway's protocol, because a node without its package uses this module too.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from tasuki.engine.config import EngineConfig
from tasuki.model.config import ModelConfig
from tasuki.model.vision.config import placeholder_ids
from tasuki.server.config import ServerConfig


@dataclass(frozen=True)
class GatewayModel:
    """The served model's properties for a gateway. folder: checkpoint folder. max_tokens: limit for
    prompt and answer together. eos_ids: ids of the tokens ending an answer, unless the request
    ignores them. placeholders: token ids standing for pictures."""

    folder: Path
    name: str
    model_type: str
    architectures: tuple[str, ...]
    dtype: str
    vocab_size: int
    max_tokens: int
    eos_ids: tuple[int, ...]
    placeholders: frozenset[int] = frozenset()

    @staticmethod
    def of(
        engine_config: EngineConfig,
        server_config: ServerConfig,
        model: ModelConfig,
        max_tokens: int,
    ) -> "GatewayModel":
        folder = Path(engine_config.model).resolve()
        published = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return GatewayModel(
            folder=folder,
            name=server_config.model_names(folder)[0],
            model_type=model.model_type,
            architectures=tuple(published.get("architectures") or ()),
            dtype=engine_config.compute_dtype,
            vocab_size=model.vocab,
            max_tokens=max_tokens,
            eos_ids=model.eos_ids,
            placeholders=placeholder_ids(folder),
        )
