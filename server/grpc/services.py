"""The gRPC services over one engine."""

import time
from functools import partial

from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.server.auth.held_bytes import HeldBytes
from tasuki.server.config import ServerConfig
from tasuki.server.engine_client import EngineClient
from tasuki.server.role_change import RoleChange
from tasuki.server.sessions.session_store import SessionStore
from tasuki.server.text.text_codec import TextCodec
from tasuki.transfer.liveness.link_status import HandoverStatus, HandoverStatusSource

from .admin_service import AdminService
from .inference_service import InferenceService
from .server import Service
from .session_service import SessionService


def grpc_services(
    engine: EngineClient,
    codec: TextCodec,
    config: ServerConfig,
    handover: HandoverStatusSource = HandoverStatus,
    role_change: RoleChange | None = None,
    store: SessionStore | None = None,
    held: HeldBytes | None = None,
) -> tuple[Service, ...]:
    """Inference, Session and CacheAdmin. handover, role_change: as in AdminService. store: of
    sessions; None: one of its own. held: counts the memory of calls; None: counts of its own."""
    held = HeldBytes.for_messages(config.access.max_message_bytes) if held is None else held
    store = session_store(engine, config) if store is None else store
    keys = config.access.keys
    inference = InferenceService(engine, codec, keys, held)
    session = SessionService(engine, codec, store, keys, held)
    return (
        Service(
            "tasuki.v1.Inference",
            partial(pb_grpc.add_InferenceServicer_to_server, inference),
        ),
        Service(
            "tasuki.v1.Session",
            partial(pb_grpc.add_SessionServicer_to_server, session),
        ),
        admin_service(engine, config, store, handover, role_change),
    )


def session_store(engine: EngineClient, config: ServerConfig) -> SessionStore:
    return SessionStore(
        engine,
        time.monotonic,
        config.max_sessions,
        config.session_idle_seconds,
        config.key_sessions,
    )


def admin_service(
    engine: EngineClient,
    config: ServerConfig,
    store: SessionStore | None,
    handover: HandoverStatusSource = HandoverStatus,
    role_change: RoleChange | None = None,
) -> Service:
    """CacheAdmin alone; store is None where there are no sessions."""
    admin = AdminService(engine, store, handover, role_change, config.access.keys)
    return Service("tasuki.v1.CacheAdmin", partial(pb_grpc.add_CacheAdminServicer_to_server, admin))
