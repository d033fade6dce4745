"""`tasuki conformance URL`: checks an endpoint's APIs, any server's, and prints a table.

Sends ordinary requests alone. Exit status 1: a row failed.

The rows of a run as a table in Markdown, and as JSON. Pure.
"""

import asyncio
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tasuki.cli.conformance.checks.service import listed_models, served
from tasuki.utils.flags import FlagParser
from tasuki.utils.options import option
from tasuki.utils.program import package_version

from . import catalogue
from .api import Api
from .check import Caller, Check
from .endpoint import Endpoint, open_endpoint
from .outcome import Departure, Outcome, Row, Unserved


def markdown(rows: Sequence[Row]) -> list[str]:
    """The table, and a line with the counts."""
    lines = ["| API | check | result | note |", "| --- | --- | --- | --- |"]
    for row in rows:
        note = row.note.replace("|", "\\|")
        lines.append(f"| {row.api} | {row.check} | {row.outcome.value} | {note} |")
    return [*lines, "", counts(rows)]


def counts(rows: Sequence[Row]) -> str:
    found = [row.outcome for row in rows]
    return ", ".join(f"{found.count(each)} {each.value}" for each in Outcome)


def as_json(url: str, model: str, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "url": url,
        "model": model,
        "tasuki": package_version(),
        "python": platform.python_version(),
        "aiohttp": aiohttp.__version__,
        "rows": [
            {
                "api": row.api,
                "check": row.check,
                "outcome": row.outcome.value,
                "note": row.note,
            }
            for row in rows
        ],
    }


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

    def checks_of(self, api: Api) -> list[Check]:
        return catalogue.dictated_checks_of(api) if self.dictated else catalogue.checks_of(api)


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
    model, rows = asyncio.run(checked(url, config))
    print("\n".join(markdown(rows)))
    if config.json:
        text = json.dumps(as_json(url, model, rows), indent=1)
        Path(config.json).write_text(text + "\n", encoding="utf-8")
    return int(any(row.outcome is Outcome.FAILED for row in rows))


async def checked(url: str, config: ConformanceConfig) -> tuple[str, list[Row]]:
    """The model that was asked, and the rows. Raises EndpointError, ConformanceError."""
    names = config.apis
    async with open_endpoint(url, config.key, config.request_timeout, config.ca) as endpoint:
        model = config.model or await _first_model(endpoint)
        rows: list[Row] = []
        for name in names:
            if name != catalogue.MODELS:
                caller = Caller(endpoint, catalogue.APIS[name], model)
                rows += await api_rows(caller, config.checks_of(caller.api))
            elif not config.dictated:
                caller = Caller(endpoint, catalogue.APIS["chats"], model)
                rows += await _rows(name, caller, catalogue.MODEL_CHECKS)
    return model, rows


async def api_rows(caller: Caller, checks: Sequence[Check]) -> list[Row]:
    """One row where the API is not served. No rows without checks."""
    if not checks:
        return []
    api = caller.api
    row = await Check("the API is served", served).row(api.name, caller)
    if row.outcome is not Outcome.PASSED:
        return [row]
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
