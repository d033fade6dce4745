"""Factory of the smg gateway's engine protocol service, if the node is to serve it.

The optional package is imported only here, so a node without a gateway does not need it.
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
    """The protocol is to be served and its package is not installed."""


GatewayServices = Callable[[EngineClient], tuple[Service, ...]]
"""Returns the gateway's services over the engine's client. Raises GatewayUnavailable."""


def gateway_of(
    engine_config: EngineConfig,
    config: ServerConfig,
    model_config: ModelConfig,
    max_tokens: int,
    max_batch: int,
    codec: TextCodec | None,
    answers: Answers | None = None,
) -> GatewayServices:
    """Return a function from the engine's client to the gateway's services. If the config disables
    the gateway, it returns none and does not read the model's folder. max_tokens: limit for prompt
    and answer together. max_batch: requests in one forward. codec: None if another node samples the
    answers. answers: receiver of the requests; default: the engine's client. The function raises
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
