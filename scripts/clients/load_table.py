"""A table of load generators by other projects, run against a prefill and a decode node. It shows
their counts beside the server's.

A row holds if no request failed and the client's sum of cached tokens equals the server's count. If
a client keeps no count, only the server's is shown. Traffic stays on loopback.
"""

import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.clients.install import program
from scripts.common.command import head, row, show
from scripts.common.daemons import Pair
from tasuki.model.named_checkpoints import embedded_model
from tests.harness.daemons import flags

MODEL = "embedded"
_HUB_NAME = "local/embedded"
_REQUESTS, _PROMPT_TOKENS, _ANSWER_TOKENS = 12, 64, 24
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True)
class ClientCounts:
    """The counts of a client. cached_tokens: sum over all answers; None: the client keeps no such
    count. It is 0 if the client keeps none and its prompts share nothing."""

    requests: int
    failed: int
    cached_tokens: int | None


@dataclass(frozen=True)
class Run:
    """A run of an unmodified client. command: command line, run in the client's folder. read:
    function extracting the counts from its output and its folder."""

    command: tuple[str, ...]
    read: Callable[[str, Path], ClientCounts]
    environment: Mapping[str, str] = field(default_factory=dict)


def runs(url: str, tokenizer: Path, folder: Path) -> dict[str, Run]:
    """Return the run of each client, by name. url: URL of the HTTP server, without /v1. tokenizer:
    a folder in Hugging Face layout. folder: folder for clients' files."""
    hub = _hub(tokenizer, folder / "hub")
    return {
        "aiperf": Run(
            (
                *(str(program("aiperf", "aiperf")), "profile", "--model", MODEL, "--url", url),
                *("--endpoint-type", "chat", "--streaming", "--tokenizer", _HUB_NAME),
                *("--conversation-num", "4", "--conversation-turn-mean", "3"),
                *("--conversation-turn-stddev", "0", "--concurrency", "2"),
                *("--synthetic-input-tokens-mean", "120", "--output-tokens-mean", "12"),
                *("--extra-inputs", "ignore_eos:true", "--ui", "none", "--random-seed", "1"),
                *("--output-artifact-dir", str(folder / "aiperf")),
            ),
            _read_aiperf,
            hub,
        ),
        "evalscope": Run(
            (
                *(str(program("evalscope", "evalscope")), "perf", "--model", MODEL),
                *("--url", f"{url}/v1/chat/completions", "--api", "openai", "--stream"),
                *("--multi-turn", "--dataset", "random_multi_turn"),
                *("--tokenizer-path", str(tokenizer), "--parallel", "2", "--number", "6"),
                *("--min-turns", "2", "--max-turns", "3", "--seed", "1"),
                *("--min-prompt-length", "100", "--max-prompt-length", "200"),
                *("--max-tokens", "12", "--prefix-length", "0"),
                *("--no-timestamp", "--outputs-dir", str(folder / "evalscope")),
            ),
            _read_evalscope,
            hub,
        ),
        "guidellm": Run(
            (
                *(str(program("guidellm", "guidellm")), "run"),
                *("--backend", f"kind=openai_http,target={url},model={MODEL}"),
                *("--profile", "kind=synchronous"),
                *("--constraint", "kind=max_requests,count=6"),
                *("--tokenizer", f"kind=hf_auto,model={tokenizer}"),
                *("--data", "kind=synthetic_text,prompt_tokens=200,output_tokens=12"),
                *("--output", f"kind=json,path={folder / 'guidellm.json'}"),
                "--disable-console-interactive",
            ),
            _read_guidellm,
            hub,
        ),
        "locust": Run(
            (
                *(str(program("locust", "locust")), "--headless", "--only-summary"),
                *("-f", str(Path(__file__).with_name("locustfile.py")), "--host", url),
                # Do not stop a user in the middle of a chat: its count would be lost.
                *("--users", "4", "--run-time", "15s", "--stop-timeout", "60"),
            ),
            _read_locust,
        ),
        "inference-perf": Run(
            (
                str(program("inference-perf", "inference-perf")),
                *("--config_file", str(_inference_perf_settings(url, tokenizer, folder))),
            ),
            _read_inference_perf,
            _OFFLINE,
        ),
        "vllm": Run(
            (
                *(str(program("vllm", "vllm")), "bench", "serve", "--backend", "openai-chat"),
                *("--base-url", url, "--endpoint", "/v1/chat/completions"),
                *("--model", MODEL, "--tokenizer", str(tokenizer), "--seed", "1"),
                *("--dataset-name", "random", "--random-input-len", str(_PROMPT_TOKENS)),
                *("--random-output-len", str(_ANSWER_TOKENS), "--num-prompts", str(_REQUESTS)),
                *("--max-concurrency", "1", "--save-result"),
                *("--result-dir", str(folder), "--result-filename", "vllm.json"),
            ),
            _read_vllm,
            _OFFLINE,
        ),
        "genai-bench": Run(
            (
                *(str(program("genai-bench", "genai-bench")), "benchmark"),
                *("--api-backend", "openai", "--api-base", url, "--api-key", "none"),
                *("--api-model-name", MODEL, "--model-tokenizer", str(tokenizer)),
                *("--task", "text-to-text"),
                *("--traffic-scenario", f"D({_PROMPT_TOKENS},{_ANSWER_TOKENS})"),
                *("--num-concurrency", "1", "--max-requests-per-run", str(_REQUESTS)),
                *("--max-time-per-run", "5", "--experiment-base-dir", str(folder)),
                *("--experiment-folder-name", "run", "--log-dir", str(folder)),
            ),
            _read_genai_bench,
            _OFFLINE,
        ),
    }


def _inference_perf_settings(url: str, tokenizer: Path, folder: Path) -> Path:
    """Write inference-perf's settings to a YAML file, in the form of JSON, and return its path.
    Prompts it makes itself with a chosen length are not chats, so it gets a file of chats."""
    chats, config = folder / "chats.json", folder / "config.yml"
    text = " ".join(
        ("house", "letter", "room", "dinner")[n % 4] for n in range(_PROMPT_TOKENS // 2)
    )
    turns = [
        [{"from": name, "value": f"{number} {text}"} for name in ("system", "human")]
        for number in range(_REQUESTS + 1)  # It drops the first.
    ]
    chats.write_text(json.dumps([{"conversations": each} for each in turns]), encoding="utf-8")
    settings = {
        "api": {"type": "chat", "streaming": True},
        "data": {"type": "shareGPT", "path": str(chats)},
        "load": {
            "type": "concurrent",
            "stages": [{"num_requests": _REQUESTS, "concurrency_level": 1}],
            "num_workers": 1,
        },
        "server": {"type": "vllm", "model_name": MODEL, "base_url": url},
        "tokenizer": {"pretrained_model_name_or_path": str(tokenizer)},
        "storage": {"local_storage": {"path": str(folder / "reports")}},
    }
    config.write_text(json.dumps(settings), encoding="utf-8")
    return config


def _hub(tokenizer: Path, home: Path) -> dict[str, str]:
    """Make a Hugging Face cache listing the tokenizer folder under a hub name, because some clients
    accept only hub names. Returns its environment variables."""
    model = home / "hub" / f"models--{_HUB_NAME.replace('/', '--')}"
    snapshot = model / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0")
    for file in tokenizer.iterdir():
        if file.suffix in (".json", ".jinja"):
            (snapshot / file.name).write_bytes(file.read_bytes())
    return {"HF_HOME": str(home), **_OFFLINE}


def _read_aiperf(output: str, folder: Path) -> ClientCounts:
    (export,) = (folder / "aiperf").rglob("profile_export.jsonl")
    records = [json.loads(line) for line in export.read_text(encoding="utf-8").splitlines()]
    good = [record for record in records if not record.get("error")]
    cached = [
        record["metrics"].get("usage_prompt_cache_read_tokens", {}).get("value", 0)
        for record in good
    ]
    return ClientCounts(len(records), len(records) - len(good), int(sum(cached)))


def _read_evalscope(output: str, folder: Path) -> ClientCounts:
    """Return the counts of an evalscope run. Its summary has a rate; its timeline has the count,
    accumulated answer by answer."""
    (summary,) = (folder / "evalscope").rglob("benchmark_summary.json")
    counts = json.loads(summary.read_text(encoding="utf-8"))
    timeline = summary.with_name("workload_timeline.json")
    *_, last = json.loads(timeline.read_text(encoding="utf-8"))["points"]
    return ClientCounts(
        counts["Total Requests"], counts["Failed Requests"], last["cum_cached_prompt"]
    )


def _read_guidellm(output: str, folder: Path) -> ClientCounts:
    report = json.loads((folder / "guidellm.json").read_text(encoding="utf-8"))
    totals = [benchmark["metrics"]["request_totals"] for benchmark in report["benchmarks"]]
    failed = sum(total["errored"] + total["incomplete"] for total in totals)
    return ClientCounts(sum(total["total"] for total in totals), failed, 0)


def _read_locust(output: str, folder: Path) -> ClientCounts:
    (line,) = [line for line in output.splitlines() if line.startswith('{"turns"')]
    counts = json.loads(line)
    return ClientCounts(counts["turns"], counts["failed"], counts["cached_tokens"])


def _read_inference_perf(output: str, folder: Path) -> ClientCounts:
    (report,) = folder.rglob("summary_lifecycle_metrics.json")
    counts = json.loads(report.read_text(encoding="utf-8"))
    failed = counts["failures"]["count"]
    return ClientCounts(counts["successes"]["count"] + failed, failed, None)


def _read_vllm(output: str, folder: Path) -> ClientCounts:
    counts = json.loads((folder / "vllm.json").read_text(encoding="utf-8"))
    asked = counts["num_prompts"]
    return ClientCounts(asked, asked - counts["completed"], None)


def _read_genai_bench(output: str, folder: Path) -> ClientCounts:
    (report,) = [file for file in folder.rglob("*.json") if "concurrency" in file.name]
    counts = json.loads(report.read_text(encoding="utf-8"))["aggregated_metrics"]
    return ClientCounts(counts["num_requests"], counts["num_error_requests"], None)


CLIENTS = (
    *("aiperf", "evalscope", "guidellm", "locust"),
    *("inference-perf", "vllm", "genai-bench"),
)
_SECONDS = 900


def usable_tokens(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
        pattern = r"^tasuki_request_usable_tokens_total (\S+)$"
        (found,) = re.findall(pattern, reply.read().decode(), re.MULTILINE)
    return int(float(found))


def _ran(client: str, address: str, folder: Path) -> bool:
    """Run a client, and print its line of a Markdown table. Returns True if the line holds."""
    run = runs(f"http://{address}", embedded_model(), folder)[client]
    before, begun = usable_tokens(address), time.monotonic()
    done = subprocess.run(
        run.command,
        cwd=folder,
        env={**os.environ, **run.environment},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    (folder / "output").write_text(done.stdout + done.stderr, encoding="utf-8")
    spent, counted = time.monotonic() - begun, usable_tokens(address) - before
    try:
        counts = run.read(done.stdout + done.stderr, folder)
    except (OSError, ValueError, KeyError) as error:
        show(row(client, f"no result: {error!r}; see {folder}/output", "", "", "", ""))
        return False
    cached = "does not count" if counts.cached_tokens is None else str(counts.cached_tokens)
    show(row(client, counts.requests, counts.failed, cached, counted, f"{spent:.0f} s"))
    agrees = counts.requests > 0 and not counts.failed and counts.cached_tokens in (None, counted)
    return done.returncode == 0 and agrees


def run_load(clients: Sequence[str], folder: Path) -> bool:
    """Run the clients and print a table, a row for each. Returns True if every row holds. folder:
    folder for clients' files."""
    common = flags(arena_mib=256)
    http = ("--http-bind", "127.0.0.1:0", "--served-model-name", "embedded")
    columns = ("requests", "failed", "cached, its sum", "cached, the server's", "took")
    show(head("client", *columns))
    good = True
    with Pair(common, (*common, *http)) as pair:
        for client in clients:
            (folder / client).mkdir()
            good &= _ran(client, pair.decode.http_address, folder / client)
    return good
