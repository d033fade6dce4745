"""What a gateway asks of a node when it registers it: model, arguments, load, tokenizer files.

tokenizer_archive(): A checkpoint's tokenizer and template files as one archive, for a gateway that
tokenizes. Pure but for reading the folder. The same files give the same bytes, so that gateways
which keep archives by their digest keep one.
"""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from google.protobuf.struct_pb2 import Struct  # type: ignore[import-untyped]
from smg_grpc_proto.generated import common_pb2 as common_pb
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as pb

from tasuki.engine.messages import RequestPhase, StatsReply
from tasuki.pycache._cpp_cache import PAGE_TOKENS
from tasuki.server.errors import InvalidRequest
from tasuki.utils.program import package_version

from .gateway_model import GatewayModel


def loads_message(stats: StatsReply, max_running: int) -> pb.GetLoadsResponse:
    """max_running: requests in one forward."""
    load = scheduler_load(stats, max_running)
    return pb.GetLoadsResponse(
        timestamp=datetime.now(UTC).isoformat(),
        version=package_version(),
        dp_rank_count=1,
        loads=[load],
        aggregate=pb.AggregateMetrics(
            total_running_reqs=load.num_running_reqs,
            total_waiting_reqs=load.num_waiting_reqs,
            total_reqs=load.num_total_reqs,
            avg_token_usage=load.token_usage,
            avg_utilization=load.utilization,
        ),
    )


def scheduler_load(stats: StatsReply, max_running: int) -> pb.SchedulerLoad:
    """Usage counts KV pages: all that is held, and `active` what eviction cannot take."""
    total = sum(stats.requests.values())
    waiting = sum(count for phase, count in stats.requests.items() if phase.is_queued)
    running = sum(count for phase, count in stats.requests.items() if phase.is_running)
    pages = stats.pages
    capacity = max(1, pages["total"])
    held = pages["total"] - pages["free"]
    active = held - pages["tree"] + pages["pinned"]
    asked, usable = stats.looked_up_tokens, stats.usable_tokens
    return pb.SchedulerLoad(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_total_reqs=total,
        num_used_tokens=held * PAGE_TOKENS,
        max_total_num_tokens=capacity * PAGE_TOKENS,
        max_running_requests=max_running,
        token_usage=held / capacity,
        active_token_usage=active / capacity,
        cache_hit_rate=usable / asked if asked else 0.0,
        utilization=min(1.0, running / max_running),
        queues=pb.QueueMetrics(
            waiting=waiting, retracted=stats.requests.get(RequestPhase.RETRACTED, 0)
        ),
    )


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


_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
)
_CHUNK_BYTES = 1 << 20
_NO_DATE = (1980, 1, 1, 0, 0, 0)


def tokenizer_archive(folder: Path) -> bytes:
    """A zip. Raises InvalidRequest where the checkpoint has no tokenizer."""
    if not (folder / "tokenizer.json").is_file():
        raise InvalidRequest("this checkpoint has no tokenizer.json: give the gateway one")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writing:
        for name in _FILES:
            path = folder / name
            if path.is_file():
                entry = zipfile.ZipInfo(name, date_time=_NO_DATE)
                entry.compress_type = zipfile.ZIP_DEFLATED
                writing.writestr(entry, path.read_bytes())
    return archive.getvalue()


def archive_chunks(archive: bytes) -> Iterator[common_pb.GetTokenizerChunk]:
    """The last one carries the digest of all."""
    digest = hashlib.sha256(archive).hexdigest()
    for start in range(0, len(archive), _CHUNK_BYTES):
        last = start + _CHUNK_BYTES >= len(archive)
        yield common_pb.GetTokenizerChunk(
            data=archive[start : start + _CHUNK_BYTES], sha256=digest if last else ""
        )
