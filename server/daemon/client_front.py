"""The client side of a node: codec, services and routes over one engine, front workers."""

import time
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from tasuki.dashboard.observed import PictureFiles
from tasuki.engine.config import EngineConfig
from tasuki.engine.messages import PictureCounts
from tasuki.model.config import ModelConfig
from tasuki.model.grammar.trials.client import GrammarTrials
from tasuki.server.anthropic.routes import message_routes
from tasuki.server.config import ServerConfig
from tasuki.server.engine_client import EngineClient
from tasuki.server.grpc.server import Service
from tasuki.server.grpc.services import grpc_services, session_store
from tasuki.server.openai.generation import ServedModel
from tasuki.server.openai.routes import model_routes, openai_routes, served_model
from tasuki.server.openai.weight_routes import WeightHandlers
from tasuki.server.pictures.node_pictures import NodePictures
from tasuki.server.responses.endpoints.routes import response_routes
from tasuki.server.responses.stored_responses import ResponseStore
from tasuki.server.role_change import RoleChange
from tasuki.server.sessions import HeldSessions, SessionStore
from tasuki.server.smg.factory import gateway_of
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.workers.links import NodeSockets
from tasuki.server.workers.pool import NodeWorkers, WorkerPool
from tasuki.server.workers.registry import Header, Registry
from tasuki.server.workers.worker import WorkerJob
from tasuki.transfer.control.link_status import HandoverStatus, HandoverStatusSource

from .engine_process import EngineProcess


def node_codec(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    model: ModelConfig,
    grammars: GrammarTrials | None = None,
) -> TextCodec:
    """Load the text codec (tokenizer and chat template) from the engine config's checkpoint folder.
    model: the checkpoint's config. grammars: the node's trial runs of grammars. None: with_trials()
    sets them once the engine's process is ready."""
    return TextCodec.load(
        Path(engine_config.model),
        model.vocab,
        model.max_position,
        server_config.chat_cache_bytes,
        grammars,
    )


def with_trials(codec: TextCodec, address: str) -> TextCodec:
    """Return the codec with its node's trial runs of grammars. address: address of the trial server
    in the engine's process."""
    return replace(codec, grammars=GrammarTrials(lambda: address))


def client_routes(
    engine: EngineClient,
    model: ServedModel,
    config: ServerConfig,
    store: ResponseStore | None = None,
) -> list[web.RouteDef]:
    """Return the HTTP routes for clients. store: stored responses; None: create a store."""
    store = response_store(config) if store is None else store
    return [
        *openai_routes(engine, model),
        *message_routes(engine, model),
        *response_routes(engine, model, store),
        *model_routes(model),
    ]


def response_store(config: ServerConfig) -> ResponseStore:
    return ResponseStore(
        time.monotonic,
        config.response_store_mib * 2**20,
        config.responses_per_key,
        config.response_seconds,
    )


class ClientFront:
    """The services, routes and front workers for a node's clients. All services over one engine
    client share its sessions. All routes share one response store."""

    def __init__(
        self,
        engine_config: EngineConfig,
        config: ServerConfig,
        model: ModelConfig,
        codec: TextCodec,
        max_request_tokens: int,
        max_batch: int,
        status: HandoverStatusSource = HandoverStatus,
        role_change: RoleChange | None = None,
        pictures: NodePictures | None = None,
    ) -> None:
        """Set up the services. max_request_tokens, max_batch: limits of the engine, in tokens and
        in requests. status, role_change: arguments of AdminService. pictures: reads those of
        requests; None: they are refused."""
        self.folder = engine_config.model
        """Path of the checkpoint's folder."""
        self._config = config
        self._model = model
        self._codec = codec
        self._max_request_tokens = max_request_tokens
        self._status = status
        self._role_change = role_change
        self._served = served_model(self.folder, config, max_request_tokens, codec, pictures)
        self._responses = response_store(config)
        self._sessions: dict[EngineClient, SessionStore] = {}
        self._gateway = gateway_of(
            engine_config, config, model, max_request_tokens, max_batch, codec
        )

    @property
    def grammars(self) -> GrammarTrials:
        """Return the client of the process for trial compilation of callers' grammars."""
        return self._codec.grammars

    def chat_tokens(self) -> dict[str, int]:
        """Return the token counts of rendered conversations, by source."""
        return self._codec.chat_tokens()

    def picture_files(self) -> PictureFiles:
        """Return the counts of pictures, and the bytes of kept files by holder."""
        pictures = self._served.pictures
        if pictures is None or not pictures.sees:
            return PictureFiles()
        sessions = sum(store.picture_bytes for store in self._sessions.values())
        held = {"sessions": sessions, "responses": self._responses.picture_bytes}
        return PictureFiles(self.picture_counts(), held)

    def picture_counts(self) -> PictureCounts:
        """Return the counts of pictures that this process read."""
        pictures = self._served.pictures
        return PictureCounts() if pictures is None else pictures.counter.counts()

    def services(self, client: EngineClient) -> tuple[Service, ...]:
        store = self._store(client)
        ours = grpc_services(
            *(client, self._codec, self._config, self._status, self._role_change, store),
            held=self._served.held,
            pictures=self._served.pictures,
        )
        return (*ours, *self._gateway(client))

    def routes(self, client: EngineClient) -> list[web.RouteDef]:
        return [
            *client_routes(client, self._served, self._config, self._responses),
            *WeightHandlers(client, self._served.held).routes(),
        ]

    def workers(self, engine: EngineProcess, sockets: NodeSockets | None) -> NodeWorkers | None:
        """Return the front workers of the node, not started; None without `sockets`. sockets: the
        node's Unix sockets; None: this process answers clients itself."""
        if sockets is None:
            return None
        job = WorkerJob(
            0,
            sockets,
            self._config,
            self.folder,
            self._model.vocab,
            self._model.max_position,
            self._max_request_tokens,
            self._codec.grammars.address,
            self._served.sees,
        )
        pool = WorkerPool(job, self._config.front_workers)
        return NodeWorkers(sockets, pool, self._registry, engine.on_worker_gone)

    def _store(self, client: EngineClient) -> SessionStore:
        """Return the session store of the engine client, shared by all services over this
        client."""
        if client not in self._sessions:
            self._sessions[client] = session_store(client, self._config)
        return self._sessions[client]

    def _registry(self, client: EngineClient, header: Header) -> Registry:
        sessions = HeldSessions(self._store(client), self._codec)
        return Registry(client, header, sessions, self._responses)
