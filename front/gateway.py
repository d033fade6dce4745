"""Whether a node serves the smg gateway's engine protocol, and with what.

Only here is the optional package looked for, so that a node without a gateway never needs it.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from ..engine.config import EngineConfig
from ..engine.engine import Engine
from ..model.config import ModelConfig
from .answers import Answers
from .config import FrontConfig
from .engine_client import EngineClient
from .gateway_model import GatewayModel
from .server import Service
from .tokenizer import Tokenizer


class GatewayUnavailable(RuntimeError):
    """The protocol was asked for and its package is not installed."""


def gateway_of(
    engine_config: EngineConfig,
    config: FrontConfig,
    model_config: ModelConfig,
    engine: Engine,
    tokenizer: Tokenizer | None,
    answers: Answers | None = None,
) -> Callable[[EngineClient], tuple[Service, ...]]:
    """What serves the protocol over a client of this engine: nothing where the config does not ask
    for it. answers: where requests go; the engine itself if not given. What it gives raises
    GatewayUnavailable."""
    model = GatewayModel.of(engine_config, config, model_config, engine)
    max_batch = engine_config.max_batch
    return lambda client: _services(client, config, model, tokenizer, max_batch, answers)


def _services(
    engine: EngineClient,
    config: FrontConfig,
    model: GatewayModel,
    tokenizer: Tokenizer | None,
    max_batch: int,
    answers: Answers | None,
) -> tuple[Service, ...]:
    if not config.gateway:
        return ()
    if find_spec("smg_grpc_proto") is None:
        raise GatewayUnavailable(
            "gateway needs the package smg-grpc-proto: pip install 'tasuki[smg]'"
        )
    from smg_grpc_proto.generated import tokenspeed_scheduler_pb2_grpc as pb_grpc

    from .gateway_service import SERVICE, GatewayService

    servicer = GatewayService(engine, answers or engine, model, tokenizer, max_batch)
    return (Service(SERVICE, partial(pb_grpc.add_TokenSpeedSchedulerServicer_to_server, servicer)),)
