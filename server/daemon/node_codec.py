"""The text codec of a node's front."""

from pathlib import Path

from tasuki.engine.config import EngineConfig
from tasuki.model.config import ModelConfig
from tasuki.model.grammar.grammar_check import GrammarCheck
from tasuki.server.config import ServerConfig
from tasuki.server.text.text_codec import TextCodec


def node_codec(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    model: ModelConfig,
    grammars: GrammarCheck | None = None,
) -> TextCodec:
    """model: of the folder that the engine's config names. grammars: of an engine in this process,
    so that a grammar that the front has tried is not tried there once more."""
    return TextCodec.load(
        Path(engine_config.model),
        model.vocab,
        model.max_position,
        server_config.chat_cache_bytes,
        grammars,
    )
