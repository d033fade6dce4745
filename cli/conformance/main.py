"""`tasuki conformance URL`: checks an endpoint's APIs, any server's, and prints a table.

Asks only what clients ask. Exit status 1 where a row failed.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasuki.utils.config.flags import FlagParser
from tasuki.utils.config.options import option

from . import catalogue
from .apis.api import Api
from .caller import Caller
from .check import Check
from .checks.models import listed_models
from .dictated import catalogue as dictated
from .endpoint import Endpoint
from .outcome import Departure, Outcome, Row, Unserved
from .question import Question
from .table import as_json, markdown

_KNOWN = (catalogue.MODELS, *catalogue.APIS)


@dataclass(frozen=True)
class ConformanceConfig:
    api: str = option(",".join(_KNOWN), "what to check, separated by commas")
    model: str = option("", "the model's name; empty: the first that the endpoint lists")
    api_key: str = option("", "the endpoint's key")
    api_key_file: str = option("", "file with the endpoint's key on its first line")
    ca: str = option("", "PEM file of a CA: connect by TLS and check the endpoint against it")
    request_timeout: float = option(120.0, "for each request")
    dictated: bool = option(
        False, "only damaged and cut calls, of a server that says what it is asked to say"
    )
    json: str = option("", "file for the rows and the versions", unit="FILE")

    @property
    def apis(self) -> list[str]:
        """Raises ConformanceError."""
        names = [name.strip() for name in self.api.split(",") if name.strip()]
        for name in names:
            if name not in _KNOWN:
                raise ConformanceError(f"--api {name} is not known: use {', '.join(_KNOWN)}")
        return names

    @property
    def key(self) -> str:
        if not self.api_key_file:
            return self.api_key
        return (Path(self.api_key_file).read_text(encoding="utf-8").splitlines() or [""])[0].strip()


class ConformanceError(Exception):
    """The endpoint cannot be checked as asked; the message names the mend."""


def main(argv: Sequence[str]) -> int:
    """1 where a row failed, else 0."""
    parser = FlagParser("tasuki conformance", "Whether an endpoint answers as its APIs say.")
    parser.add_argument("url", help="of the server, as http://127.0.0.1:8000")
    parser.add_config(ConformanceConfig)
    values = parser.parse_args(argv)
    config = parser.build(ConformanceConfig, values)
    url = values.url if "://" in values.url else f"http://{values.url}"
    url = url.rstrip("/").removesuffix("/v1")
    endpoint = Endpoint(url, config.key, config.request_timeout, config.ca)
    model, rows = asyncio.run(checked(endpoint, config))
    print("\n".join(markdown(rows)))
    if config.json:
        text = json.dumps(as_json(url, model, rows), indent=1)
        Path(config.json).write_text(text + "\n", encoding="utf-8")
    return int(any(row.outcome is Outcome.FAILED for row in rows))


async def checked(endpoint: Endpoint, config: ConformanceConfig) -> tuple[str, list[Row]]:
    """The model that was asked, and the rows. Raises EndpointError, ConformanceError."""
    names = config.apis
    async with endpoint:
        model = config.model or await _first_model(endpoint)
        rows: list[Row] = []
        for name in names:
            if name == catalogue.MODELS:
                if not config.dictated:
                    caller = Caller(endpoint, catalogue.APIS["chats"], model)
                    rows += await _rows(name, caller, catalogue.MODEL_CHECKS)
                continue
            api = catalogue.APIS[name]
            checks = dictated.checks_of(api) if config.dictated else catalogue.checks_of(api)
            if checks:
                rows += await _api_rows(Caller(endpoint, api, model), checks)
    return model, rows


async def _api_rows(caller: Caller, checks: Sequence[Check]) -> list[Row]:
    """One row where the API is not served."""
    api: Api = caller.api
    body = api.body(caller.model, Question("Hello.", bound=16))
    reply = await caller.endpoint.post(api.path, body)
    if reply.status in (404, 405, 501):
        note = f"no {api.path} here: {reply.status}"
        return [Row(api.name, "the API is served", Outcome.SKIPPED, note)]
    return await _rows(api.name, caller, checks)


async def _rows(name: str, caller: Caller, checks: Sequence[Check]) -> list[Row]:
    rows = []
    for check in checks:
        print(f"{name}: {check.name}", file=sys.stderr)
        rows.append(await check.row(name, caller))
    return rows


async def _first_model(endpoint: Endpoint) -> str:
    try:
        models = await listed_models(endpoint)
    except (Unserved, Departure) as error:
        raise ConformanceError(f"{error}: give --model NAME") from error
    if not models:
        raise ConformanceError(f"{endpoint.url} lists no model: give --model NAME")
    return str(models[0]["id"])
