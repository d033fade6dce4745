"""Factory of the gRPC service for the smg gateway, used if the node is configured to serve a
gateway.

The optional package smg-grpc-proto is imported only here, so a node without a gateway does not need
it.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from tasuki.engine.config import EngineConfig
from tasuki.model.config import ModelConfig
from tasuki.server.config import ServerConfig
from tasuki.server.engine_client import Answers, EngineClient
from tasuki.server.grpc.server import Service
from tasuki.server.text.text_codec import TextCodec

from .gateway_model import GatewayModel


class GatewayUnavailable(RuntimeError):
    """Error: the config asks for the gateway service, but its package is not installed."""


GatewayServices = Callable[[EngineClient], tuple[Service, ...]]
"""Function from the engine's client to the gRPC services for a gateway. Raises
GatewayUnavailable."""


def gateway_of(
    engine_config: EngineConfig,
    config: ServerConfig,
    model_config: ModelConfig,
    max_tokens: int,
    max_batch: int,
    codec: TextCodec | None,
    answers: Answers | None = None,
) -> GatewayServices:
    """Return a function from the engine's client to the gRPC services for a gateway. It returns no
    services if the config disables the gateway, and then does not read the model's folder.
    max_tokens: limit for prompt and answer together. max_batch: largest number of requests in one
    forward. codec: codec for stop strings and grammars; None if another node samples the answers.
    answers: receiver of the gateway's requests; None: the engine's client. The function raises
    GatewayUnavailable."""

    def services(client: EngineClient) -> tuple[Service, ...]:
        if not config.gateway:
            return ()
        if find_spec("smg_grpc_proto") is None:
            raise GatewayUnavailable(
                "gateway needs the package smg-grpc-proto: pip install 'tasuki[smg]'"
            )
        from smg_grpc_proto.generated import tokenspeed_scheduler_pb2_grpc as pb_grpc

        from .service import SERVICE, GatewayService

        model = GatewayModel.of(engine_config, config, model_config, max_tokens)
        servicer = GatewayService(
            client,
            answers or client,
            model,
            codec,
            max_batch,
            config.access.keys,
        )
        add = partial(pb_grpc.add_TokenSpeedSchedulerServicer_to_server, servicer)
        return (Service(SERVICE, add),)

    return services
