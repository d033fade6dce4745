"""What is checked of what a daemon is to serve, and the order of all checks.

Whether a checkpoint's weights could be read, by the headers of its files alone: what is missing,
what nobody would read, how they are stored, and whether this machine's GPU multiplies that.
"""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tasuki.client.channel import open_channel
from tasuki.model.config import ModelConfig
from tasuki.model.config_json import ModelConfigError
from tasuki.model.known_models import with_draft_layer
from tasuki.model.weights.layers import assemble, tensors
from tasuki.model.weights.matrix import WeightsError
from tasuki.model.weights.safetensors_files import StoredShapes
from tasuki.model.weights.safetensors_folder import Checkpoint, check_kernels
from tasuki.pycache.layout import FP8_ROWS
from tasuki.server.auth.callers import Access
from tasuki.server.bind import BindError, parse_bind
from tasuki.utils.tls import ClientTls, TlsError

from .config import DoctorConfig
from .finding import Finding, failure, ok
from .machine_checks import MACHINE, disk, hub, memory

_GIB = 2**30


def weights(folder: str) -> Finding:
    try:
        model = with_draft_layer(ModelConfig.load(folder), folder, "auto")
        with Checkpoint(Path(folder), StoredShapes) as stored:
            found = assemble(model, stored, torch.bfloat16, "meta")
            stored.check_left_over(drafts=model.draft_layers > 0)
            count = len(stored)
        if torch.cuda.is_available():
            check_kernels(folder, torch.device("cuda"))
    except (WeightsError, ModelConfigError) as error:
        return failure("weights", str(error), "mend the folder, or give another one")
    size = sum(tensor.nbytes for tensor in tensors(found)) / _GIB
    drafts = "with a draft layer" if model.draft_layers else "without a draft layer"
    return ok("weights", f"{count} tensors, {size:.2f} GiB as {found.formats}, {drafts}")


_PEER_SECONDS = 3.0


def findings(config: DoctorConfig) -> Iterator[Finding]:
    """Run every check, in order."""
    for check in MACHINE:
        yield check()
    yield memory()
    yield disk()
    yield hub()
    yield port("grpc port", config.bind, "--bind")
    if config.http_bind:
        yield port("http port", config.http_bind, "--http-bind")
    if config.model:
        yield model(config.model)
        yield weights(config.model)
    for target in filter(None, (part.strip() for part in config.peers.split(","))):
        yield peer(target, config.peers_ca)


def port(subject: str, bind: str, flag: str) -> Finding:
    """Whether it can be had; it is let go at once. flag: of tasuki doctor."""
    try:
        host, number = parse_bind(bind, Access(insecure=True))
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as listener:
            listener.bind((host, number))
    except BindError as error:
        return failure(subject, str(error), f"give {flag} HOST:PORT")
    except OSError as error:
        return failure(
            subject, f"{bind}: {error.strerror or error}", "stop what holds it, or choose another"
        )
    return ok(subject, f"{bind} is free")


def model(folder: str) -> Finding:
    try:
        config = ModelConfig.load(folder)
    except ModelConfigError as error:
        return failure("model", str(error), "give the folder of a Qwen3.5-family checkpoint")
    layout = config.cache_layout("bfloat16", "bfloat16", "float32")
    small = replace(layout, kv_dtype=FP8_ROWS)
    return ok(
        "model",
        f"{config.layers} layers, {layout.page_bytes // 1024} KiB a page of 64 tokens, "
        f"{small.page_bytes // 1024} with --kv-dtype fp8, {layout.slot_bytes // 1024} KiB a state "
        "slot",
    )


def peer(target: str, ca: str) -> Finding:
    """By gRPC's health service."""
    try:
        with open_channel(target, ClientTls(ca) if ca else None) as channel:
            request = health_pb2.HealthCheckRequest()
            reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_PEER_SECONDS)
    except TlsError as error:
        return failure("peer", str(error), "give --peers-ca the authority's PEM file")
    except grpc.RpcError as error:
        cause = error.code().name if isinstance(error, grpc.Call) else str(error)
        return failure(
            "peer",
            f"{target} does not answer: {cause}",
            "start it, open the port between the hosts, or give --peers-ca where it has TLS",
        )
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        return failure("peer", f"{target} is draining", "wait for its restart, or leave it out")
    return ok("peer", f"{target} serves")
