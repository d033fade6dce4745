"""GET /v1/models: the names of the served model."""

from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from tasuki.server.openai.generation import ServedModel


class ModelHandlers:
    def __init__(self, model: ServedModel) -> None:
        self._model = model

    async def list(self, request: web.Request) -> web.Response:
        """A card a name. `has_more` and the ids are what Anthropic's clients turn pages by."""
        cards = [self._card(name) for name in self._model.names]
        return web.json_response(
            {
                "object": "list",
                "data": cards,
                "has_more": False,
                "first_id": cards[0]["id"],
                "last_id": cards[-1]["id"],
            }
        )

    async def one(self, request: web.Request) -> web.Response:
        return web.json_response(self._card(self._model.named(request.match_info["name"])))

    def _card(self, name: str) -> dict[str, Any]:
        """OpenAI's fields, vLLM's, and the three that Anthropic's clients read beside the id."""
        model = self._model
        return {
            "id": name,
            "object": "model",
            "created": model.created,
            "owned_by": "tasuki",
            "root": model.name,
            "parent": None,
            "max_model_len": model.max_tokens,
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(model.created, UTC).isoformat(),
        }
