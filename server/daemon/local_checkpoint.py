"""From the model that a command line names to a folder on this machine."""

from dataclasses import replace

from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.model.hub_checkpoint import hub_checkpoint, is_hub_name
from tasuki.server.config import ServerConfig


def with_local_checkpoint(
    engine_config: EngineConfig, server_config: ServerConfig
) -> tuple[EngineConfig, ServerConfig]:
    """The same with a folder as the model; a model from huggingface.co keeps its name for HTTP
    clients. Blocks while it downloads. Raises HubError, EngineConfigError."""
    name, revision = engine_config.model, engine_config.revision
    if not name:
        raise EngineConfigError(
            "model is not set: give the folder of a checkpoint, or its name on huggingface.co, as "
            "Qwen/Qwen3.5-9B"
        )
    if not is_hub_name(name):
        if revision:
            raise EngineConfigError(
                f"revision {revision}: model {name!r} is a folder or no name of huggingface.co, "
                "and only those have revisions: leave it out"
            )
        return engine_config, server_config
    folder = str(hub_checkpoint(name, revision))
    served = server_config.served_model_name or name
    return (
        replace(engine_config, model=folder, revision=""),
        replace(server_config, served_model_name=served),
    )
