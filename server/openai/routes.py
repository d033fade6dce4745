"""The OpenAI-compatible HTTP API over one engine, as routes."""

import time
from pathlib import Path

from aiohttp import web

from tasuki.server.auth.held_bytes import HeldBytes
from tasuki.server.config import ServerConfig
from tasuki.server.engine_client import Answering
from tasuki.server.text.stop_strings import StopPlace
from tasuki.server.text.text_codec import TextCodec

from .chat import read_chat
from .completions import read_completion
from .generation import ServedModel, answering
from .sampling_defaults import SamplingDefaults


def openai_routes(engine: Answering, model: ServedModel) -> list[web.RouteDef]:
    return [
        web.post("/v1/chat/completions", answering(engine, model, read_chat)),
        web.post("/v1/completions", answering(engine, model, read_completion)),
    ]


def served_model(
    folder: str, config: ServerConfig, max_tokens: int, codec: TextCodec
) -> ServedModel:
    """folder: of the checkpoint; its name is the model's where the config sets none. max_tokens: of
    prompt and answer together. Raises GenerationConfigError."""
    name, *aliases = config.model_names(Path(folder))
    return ServedModel(
        name=name,
        created=int(time.time()),
        max_tokens=max_tokens,
        codec=codec,
        sampling_defaults=SamplingDefaults.load(config.generation_config, Path(folder)),
        stop_place=StopPlace(config.stop_strings),
        hides_unasked_thinking=config.messages_thinking == "asked",
        aliases=tuple(aliases),
        whole_calls=config.whole_calls,
        strict_fields=config.strict_fields,
        held=HeldBytes.for_messages(config.max_message_mib * 2**20),
    )
