"""A replacement for smg's `e2e_test/fixtures/setup_backend.py`: every backend is one `tasuki
serve`.

There is no gateway between: `gateway.base_url` is the node's. A thinking model is the tool caller
with a thinking template; any other is the same without thoughts.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import anthropic
import openai
import pytest
from infra import DEFAULT_MODEL, THIRD_PARTY_MODELS
from infra.model_specs import get_model_spec
from served_node import ServedNode, suite_node

from .markers import get_marker_value

_THINKING = frozenset(
    {
        *("Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
        *("openai/gpt-oss-20b", "openai/gpt-oss-120b"),
    }
)
_CLIENT_SECONDS = 100.0


class Gateway(NamedTuple):
    """A stand-in for smg's gateway, with the fields read by its tests."""

    base_url: str


class _Nodes:
    """The running nodes, one for each model, from its first test to the session's end."""

    def __init__(self) -> None:
        self._running: dict[str, ServedNode] = {}

    def url(self, model: str) -> str:
        if model not in self._running:
            # Like SGLang, accept any name for the model.
            self._running[model] = suite_node(model, ["--served-model-name", f"{model},*"])
        return self._running[model].url

    def stop(self) -> None:
        for node in self._running.values():
            node.stop()


_NODES = pytest.StashKey[_Nodes]()


def _nodes(config: pytest.Config) -> _Nodes:
    """Return the session's nodes; they end with the session."""
    if _NODES not in config.stash:
        config.stash[_NODES] = _Nodes()
        config.add_cleanup(config.stash[_NODES].stop)
    return config.stash[_NODES]


@pytest.fixture(scope="class")
def setup_backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield the backend's name, the model's name, a client, and the node in place of the
    gateway."""
    backend = request.param
    if not isinstance(backend, str) or backend.startswith(("pd_", "epd_")):
        pytest.skip("needs smg's own hand-over between its workers")
    model = str(get_marker_value(request, "model") or DEFAULT_MODEL)
    url = _nodes(request.config).url("tool_caller" if model in _THINKING else "tool_caller_quick")
    settings = {"api_key": "not-used", "max_retries": 0, "timeout": _CLIENT_SECONDS}
    cloud = THIRD_PARTY_MODELS.get(backend)
    name = str(cloud["model"] if cloud else get_model_spec(model)["model"])
    client: Any = openai.OpenAI(base_url=f"{url}/v1", **settings)
    if cloud and cloud.get("client_type") == "anthropic":
        client = anthropic.Anthropic(base_url=url, **settings)
    yield backend, name, client, Gateway(url)


@pytest.fixture
def backend_router() -> None:
    pytest.skip("needs smg's router")
