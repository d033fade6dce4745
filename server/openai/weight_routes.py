"""HTTP routes for trainers: pause and resume the answers, and replace the weights in between.

Names, fields and replies are those of SGLang and vLLM; a client of either needs no change. All are
thin: the engine decides (engine/updates). Callers need the scope `weights`.

    POST /update_weights_from_disk    SGLang: the weights of a checkpoint folder of this machine
    POST /pause_generation            SGLang: {"mode": "abort" | "in_place" | "retract"}
    POST /continue_generation         SGLang
    POST /pause?mode=                 vLLM: abort, wait or keep
    POST /resume                      vLLM

Each mode is taken under each name. `flush_cache` needs no work: states of other weights are never
found. Invariant: a refused update is answered with status 400 and its reason, and changed nothing.
"""

from typing import Any

from aiohttp import web

from tasuki.engine.messages import PauseMode
from tasuki.server.auth.limits import HeldBytes
from tasuki.server.engine_client import EngineClient
from tasuki.server.errors import InvalidField
from tasuki.server.http.access import http_caller
from tasuki.server.http.bounded_reading import read_body

from .request_fields import RequestFields, check_is_json, read_fields

_MODES = {mode.value: mode for mode in PauseMode} | {"in_place": PauseMode.KEEP}
PATHS = (
    *("/update_weights_from_disk", "/pause_generation", "/continue_generation"),
    *("/pause", "/resume"),
)
"""Paths of these routes, all POST."""
_LONGEST_NAME = 256
"""Most characters of a version."""
_LONGEST_PATH = 4096
_MOST_BODY_BYTES = 1 << 16


class WeightHandlers:
    def __init__(self, engine: EngineClient, held: HeldBytes) -> None:
        """held: counts the bytes of bodies."""
        self._engine = engine
        self._held = held

    def routes(self) -> list[web.RouteDef]:
        handlers = (self.update, self.pause, self.resume, self.pause_by_query, self.resume)
        return [web.post(path, handler) for path, handler in zip(PATHS, handlers, strict=True)]

    async def update(self, request: web.Request) -> web.Response:
        """Replace the weights by those of `model_path`. By default requests with memory end first.
        `abort_all_requests` aborts them, and `mode` names another way. With `keep_pause` the pause
        lasts until a resume."""
        fields = await self._fields(request)
        folder = fields.short_text("model_path", _LONGEST_PATH)
        if not folder:
            raise InvalidField("model_path", "is missing: send a checkpoint folder of this machine")
        fields.refuse_but("load_format", (None, "auto", "safetensors"))
        fields.refuse_but("is_async", (None, False))
        version = fields.short_text("weight_version", _LONGEST_NAME) or ""
        default = PauseMode.ABORT if fields.flag("abort_all_requests") else PauseMode.WAIT
        mode = mode_of(fields.text("mode"), default)
        if fields.flag("keep_pause"):
            await self._engine.pause(mode)
        done = await self._engine.update_weights(folder, mode, version)
        said: dict[str, Any] = {
            "success": done.error is None,
            "message": "The weights are updated." if done.error is None else done.error.message,
            "num_paused_requests": done.requests,
            "weight_version": done.version,
        }
        return web.json_response(said, status=200 if done.error is None else 400)

    async def pause(self, request: web.Request) -> web.Response:
        fields = await self._fields(request)
        return await self._paused(mode_of(fields.text("mode"), PauseMode.ABORT))

    async def pause_by_query(self, request: web.Request) -> web.Response:
        return await self._paused(mode_of(request.query.get("mode"), PauseMode.ABORT))

    async def _paused(self, mode: PauseMode) -> web.Response:
        await self._engine.pause(mode)
        return web.json_response({"status": "paused", "message": f"paused, mode {mode.value}"})

    async def resume(self, request: web.Request) -> web.Response:
        await self._engine.resume()
        return web.json_response({"status": "resumed", "message": "requests run again"})

    async def _fields(self, request: web.Request) -> RequestFields:
        check_is_json(request)
        with self._held.hold(http_caller(request)) as hold:
            body = await read_body(request, hold)
            if len(body) > _MOST_BODY_BYTES:
                raise InvalidField("body", f"has {len(body)} bytes, at most {_MOST_BODY_BYTES}")
            return read_fields(body)


def mode_of(name: str | None, default: PauseMode) -> PauseMode:
    """Return the pause's mode by either server's name for it. Raises InvalidField."""
    found = default if name is None else _MODES.get(name)
    if found is None:
        raise InvalidField("mode", f"must be one of {', '.join(_MODES)}")
    return found
