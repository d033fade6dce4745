"""Whether a node serves the smg gateway's engine protocol, and with what.

Only here is the optional package looked for, so that a node without a gateway never needs it.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from .answers import Answers
from .config import FrontConfig
from .engine_client import EngineClient
from .gateway_model import GatewayModel
from .server import Service
from .tokenizer import Tokenizer


class GatewayUnavailable(RuntimeError):
    """The protocol was asked for and its package is not installed."""


def gateway_services(
    engine: EngineClient,
    config: FrontConfig,
    model: Callable[[], GatewayModel],
    tokenizer: Tokenizer | None,
    max_batch: int,
    answers: Answers | None = None,
) -> tuple[Service, ...]:
    """None where the config does not ask for it. model: asked for only then. answers: where
    requests go; the engine itself if not given. Raises GatewayUnavailable."""
    if not config.gateway:
        return ()
    if find_spec("smg_grpc_proto") is None:
        raise GatewayUnavailable(
            "gateway needs the package smg-grpc-proto: pip install 'tasuki[smg]'"
        )
    from smg_grpc_proto.generated import tokenspeed_scheduler_pb2_grpc as pb_grpc

    from .gateway_service import SERVICE, GatewayService

    servicer = GatewayService(
        engine, answers or engine, model(), tokenizer, max_batch, config.access.keys
    )
    return (Service(SERVICE, partial(pb_grpc.add_TokenSpeedSchedulerServicer_to_server, servicer)),)
