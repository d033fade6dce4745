"""The text codec of a node's front."""

from dataclasses import replace
from pathlib import Path

from tasuki.engine.config import EngineConfig
from tasuki.model.config import ModelConfig
from tasuki.model.grammar.trials.client import GrammarTrials
from tasuki.server.config import ServerConfig
from tasuki.server.text.text_codec import TextCodec


def node_codec(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    model: ModelConfig,
    grammars: GrammarTrials | None = None,
) -> TextCodec:
    """Load the codec of the folder that the engine's config names. model: of that folder. grammars:
    the node's trials; None: they are set once the engine's process is ready (with_trials())."""
    return TextCodec.load(
        Path(engine_config.model),
        model.vocab,
        model.max_position,
        server_config.chat_cache_bytes,
        grammars,
    )


def with_trials(codec: TextCodec, address: str) -> TextCodec:
    """Return the codec with the trials of its node. address: where the engine's process has the
    trial server take connections."""
    return replace(codec, grammars=GrammarTrials(lambda: address))
