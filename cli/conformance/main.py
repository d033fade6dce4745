"""`tasuki conformance URL`: checks the APIs of an endpoint, of any server, and prints a table.

Sends only ordinary requests. Exit status 1: a row failed.

checks_of() and dictated_checks_of() return the checks of each API. Pure.

as_json() and markdown() return the rows of a run. Pure.
"""

import asyncio
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tasuki.cli.conformance.checks.dictated import DAMAGES
from tasuki.cli.conformance.checks.service import listed_models, served
from tasuki.utils.flags import FlagParser
from tasuki.utils.options import option
from tasuki.utils.program import package_version

from .api import Api
from .check import Caller, Check
from .checks import answers, dictated, service
from .endpoint import Endpoint, open_endpoint
from .messages_api import Messages
from .openai_api import Chats, Completions
from .outcome import Departure, Outcome, Row, Unserved
from .responses_api import Responses

APIS: Mapping[str, Api] = {
    api.name: api for api in (Chats(), Completions(), Messages(), Responses())
}
MODELS = "models"
_WITH_TOOLS = ("chats", "messages", "responses")

MODEL_CHECKS = (
    Check("the list has the model", service.listed),
    Check("one model by its id", service.one_model),
    Check("an unknown id is 404", service.unknown_model),
)
_ANSWERS = (
    Check("a whole reply has its fields", answers.whole_reply),
    Check("a reply is whole where no stream is asked for", answers.whole_by_default),
    Check("a stream's events are in order, with one id", answers.ordered_stream),
    Check("a stream is the whole reply", answers.stream_is_whole),
    Check("usage of a stream is the whole reply's", answers.usage_is_alike),
    Check("usage counts both sides", answers.usage_counts),
    Check("ids differ between requests", answers.ids_differ),
    Check("a bound of tokens ends the answer", answers.end_by_length),
)
_ONE_TOKEN = Check("a bound of one token", answers.end_of_one_token)
_STOP = Check("a stop string ends the answer before it", answers.end_by_stop)
_CALLS = (
    Check("a call of the model's own accord", answers.chosen),
    Check("a required call", answers.required),
    Check("a named call", answers.named),
    Check("a call's result is taken", answers.result),
)
_SCHEMAS = (
    Check("an answer follows a flat schema", answers.flat_schema),
    Check("an answer follows a nested schema", answers.nested_schema),
)
_CHUNKS = (
    Check("usage is the last chunk's, where asked for", answers.usage_chunk),
    Check("no usage, where not asked for", answers.no_usage_unasked),
    Check("two answers to one prompt", answers.two_choices),
    Check("two streamed answers to one prompt", answers.two_streamed_choices),
)
_OWN: Mapping[str, Sequence[Check]] = {
    "chats": (
        *(_ONE_TOKEN, _STOP, *_CHUNKS),
        Check("logprobs have one entry a token", answers.logprobs_of_chats),
        Check("streamed logprobs have one entry a token", answers.logprobs_of_streamed_chats),
        *(*_CALLS, *_SCHEMAS),
    ),
    "completions": (
        *(_ONE_TOKEN, _STOP, *_CHUNKS),
        Check("logprobs have one entry a token", answers.logprobs_of_completions),
    ),
    "messages": (
        *(_ONE_TOKEN, _STOP),
        Check("count_tokens is the usage's", answers.count_is_usage),
        *(*_CALLS, *_SCHEMAS),
    ),
    "responses": (
        Check("a stored response is the reply", service.stored_is_retrieved),
        Check("a conversation goes on by previous_response_id", service.stored_is_gone_on_from),
        Check("a deleted response is gone", service.stored_is_deleted),
        *(*_CALLS, *_SCHEMAS),
    ),
}


def _cut_calls() -> list[Check]:
    cuts = answers.CutCalls()
    return [
        Check("a call that is cut off is not finished, at every length", cuts.are_not_finished),
        Check("arguments of a call that is cut off parse, at every length", cuts.parse),
    ]


def checks_of(api: Api) -> list[Check]:
    """Return the checks of `api` for servers with a real model."""
    cut = _cut_calls() if api.name in _WITH_TOOLS else []
    return [*_ANSWERS, *_OWN[api.name], *cut, *service.refusals(api)]


_DICTATED_CALLS = (
    Check("a value may hold tags", dictated.held_tags),
    Check("text before a call stays text", dictated.text_before),
    Check("a call that the model left open is closed, and may be run", dictated.left_open),
    Check("a call without a required value is not to be run", dictated.without_required),
    Check("a name that is cut off is text", dictated.name_torn),
    Check("a stop string in a call does not count", dictated.stop_in_a_call),
    Check("a call between tags is closed at every length", dictated.cut_between_tags),
    Check("a call in JSON is closed at every length", dictated.cut_in_json),
)
_DICTATED_THOUGHTS = (
    Check("a call in a thought that is never closed", dictated.call_in_a_thought),
    Check("a thought, a text and a call", dictated.closed_thought),
)


def dictated_checks_of(api: Api) -> list[Check]:
    """Return the checks of `api` for servers with dictated answers; none for an API without
    tools."""
    if api.name not in dictated.FINISHED:
        return []
    thoughts = () if api.name == "messages" else _DICTATED_THOUGHTS
    return [*map(dictated.damaged, DAMAGES), *_DICTATED_CALLS, *thoughts]


def markdown(rows: Sequence[Row]) -> list[str]:
    """Return the table of rows in Markdown, and a line with the counts."""
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


_KNOWN = (MODELS, *APIS)


@dataclass(frozen=True)
class ConformanceConfig:
    api: str = option(",".join(_KNOWN), "APIs to check, separated by commas")
    model: str = option(
        "", "the model's name; empty: the first of the endpoint's list", unit="NAME"
    )
    api_key: str = option("", "the endpoint's key")
    api_key_file: str = option("", "file with the endpoint's key on its first line")
    ca: str = option("", "PEM file of a CA: connect by TLS and check the endpoint against it")
    request_timeout: float = option(120.0, "for each request")
    dictated: bool = option(False, "only damaged and cut calls, for a server with dictated answers")
    json: str = option("", "file for the rows and the versions", unit="FILE")

    @property
    def apis(self) -> list[str]:
        """Return the names of the APIs chosen by the flag --api. Raises ConformanceError for an
        unknown name."""
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
        return dictated_checks_of(api) if self.dictated else checks_of(api)


class ConformanceError(Exception):
    """The endpoint cannot be checked with these settings; the message names the fix."""


def main(argv: Sequence[str]) -> int:
    """Run `tasuki conformance`. Returns 1 if a check failed, else 0."""
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
    """Run the checks of the endpoint at `url`. Return the model used (by default the first listed)
    and the rows. Raises EndpointError, ConformanceError."""
    names = config.apis
    async with open_endpoint(url, config.key, config.request_timeout, config.ca) as endpoint:
        model = config.model or await _first_model(endpoint)
        rows: list[Row] = []
        for name in names:
            if name != MODELS:
                caller = Caller(endpoint, APIS[name], model)
                rows += await api_rows(caller, config.checks_of(caller.api))
            elif not config.dictated:
                caller = Caller(endpoint, APIS["chats"], model)
                rows += await _rows(name, caller, MODEL_CHECKS)
    return model, rows


async def api_rows(caller: Caller, checks: Sequence[Check]) -> list[Row]:
    """Run the checks of one API and return their rows. Returns one row if the API is not served as
    it should, and no rows without checks."""
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
