"""What a gateway asks of a node when it registers it. Pure functions."""

from google.protobuf.struct_pb2 import Struct  # type: ignore[import-untyped]
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as pb

from ..engine.messages import StatsReply
from ..pycache._cpp_cache import PAGE_TOKENS
from .gateway_model import GatewayModel
from .version import package_version


def model_info(model: GatewayModel) -> pb.GetModelInfoResponse:
    return pb.GetModelInfoResponse(
        model_path=str(model.folder),
        tokenizer_path=str(model.folder),
        served_model_name=model.name,
        model_type=model.model_type,
        architectures=model.architectures,
        max_context_length=model.max_tokens,
        max_req_input_len=model.max_tokens - 1,
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_ids,
        model_dtype=model.dtype,
    )


def server_info(model: GatewayModel, stats: StatsReply) -> pb.GetServerInfoResponse:
    arguments = Struct()
    arguments.update(
        {
            "model_path": str(model.folder),
            "tokenizer_path": str(model.folder),
            "served_model_name": model.name,
            "context_length": model.max_tokens,
            "block_size": PAGE_TOKENS,
        }
    )
    return pb.GetServerInfoResponse(
        server_args=arguments,
        active_requests=sum(stats.requests.values()),
        max_total_num_tokens=stats.pages["total"] * PAGE_TOKENS,
        tokenspeed_version=f"tasuki {package_version()}",
    )
