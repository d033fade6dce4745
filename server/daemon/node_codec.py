"""The text codec of a node's front."""

from pathlib import Path

from tasuki.engine.config import EngineConfig
from tasuki.model.config import ModelConfig
from tasuki.server.config import ServerConfig
from tasuki.server.text.text_codec import TextCodec


def node_codec(
    engine_config: EngineConfig, server_config: ServerConfig, model: ModelConfig
) -> TextCodec:
    """model: of the folder that the engine's config names."""
    return TextCodec.load(
        Path(engine_config.model),
        model.vocab,
        model.max_position,
        server_config.chat_cache_bytes,
    )
