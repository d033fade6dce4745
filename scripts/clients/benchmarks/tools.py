"""The commands of benchmark tools that others wrote, as their own pages give them.

Each asks an OpenAI-shaped server for streamed chats, one at a time. Pure but for the files that a
tool must be given.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scripts.clients.benchmarks import report
from scripts.clients.benchmarks.report import Report
from scripts.clients.install import program

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
PROMPT_TOKENS, ANSWER_TOKENS = 64, 24


@dataclass(frozen=True)
class Task:
    """url: of the server, without /v1. tokenizer: a folder in Hugging Face layout, whose last part
    is the model's name. folder: the tool's to write in."""

    url: str
    model: str
    tokenizer: Path
    folder: Path
    requests: int


@dataclass(frozen=True)
class Tool:
    """command: run in the task's folder. read: the result from that folder."""

    command: Callable[[Task], tuple[str, ...]]
    read: Callable[[Path], Report]
    environment: Mapping[str, str] = field(default_factory=lambda: OFFLINE)


def _words(tokens: int) -> str:
    """A text of so many tokens by the embedded model's tokenizer, of a word each."""
    return " ".join(("house", "letter", "room", "dinner")[number % 4] for number in range(tokens))


def _aiperf(task: Task) -> tuple[str, ...]:
    return (
        *(str(program("aiperf", "aiperf")), "profile", "--model", task.model, "--url", task.url),
        *("--endpoint-type", "chat", "--streaming", "--tokenizer", str(task.tokenizer)),
        *("--request-count", str(task.requests), "--concurrency", "1"),
        *("--synthetic-input-tokens-mean", str(PROMPT_TOKENS)),
        *("--output-tokens-mean", str(ANSWER_TOKENS), "--random-seed", "1", "--ui", "none"),
        *("--output-artifact-dir", str(task.folder / "aiperf")),
    )


def _guidellm(task: Task) -> tuple[str, ...]:
    data = f"prompt_tokens={PROMPT_TOKENS},output_tokens={ANSWER_TOKENS}"
    return (
        *(str(program("guidellm", "guidellm")), "run"),
        *("--backend", f"kind=openai_http,target={task.url},model={task.model}"),
        *("--profile", "kind=synchronous"),
        *("--constraint", f"kind=max_requests,count={task.requests}"),
        *("--tokenizer", f"kind=hf_auto,model={task.tokenizer}"),
        *("--data", f"kind=synthetic_text,{data}"),
        *("--output", f"kind=json,path={task.folder / 'guidellm.json'}"),
        "--disable-console-interactive",
    )


def _evalscope(task: Task) -> tuple[str, ...]:
    length = str(PROMPT_TOKENS)
    return (
        *(str(program("evalscope", "evalscope")), "perf", "--model", task.model),
        *("--url", f"{task.url}/v1/chat/completions", "--api", "openai", "--stream"),
        *("--dataset", "random", "--tokenizer-path", str(task.tokenizer)),
        *("--parallel", "1", "--number", str(task.requests), "--seed", "1"),
        *("--min-prompt-length", length, "--max-prompt-length", length),
        *("--max-tokens", str(ANSWER_TOKENS), "--prefix-length", "0"),
        *("--no-timestamp", "--outputs-dir", str(task.folder / "evalscope")),
    )


def _inference_perf(task: Task) -> tuple[str, ...]:
    """Its settings are a file of YAML, which JSON is.

    None of its own prompts of a chosen length are chats, so it gets a file of them.
    """
    turns = [
        [
            {"from": name, "value": f"{number} {_words(PROMPT_TOKENS // 2)}"}
            for name in ("system", "human")
        ]
        for number in range(task.requests + 1)  # It throws the first away.
    ]
    chats = task.folder / "chats.json"
    chats.write_text(json.dumps([{"conversations": each} for each in turns]), encoding="utf-8")
    settings = {
        "api": {"type": "chat", "streaming": True},
        "data": {"type": "shareGPT", "path": str(chats)},
        "load": {
            "type": "concurrent",
            "stages": [{"num_requests": task.requests, "concurrency_level": 1}],
            "num_workers": 1,
        },
        "server": {"type": "vllm", "model_name": task.model, "base_url": task.url},
        "tokenizer": {"pretrained_model_name_or_path": str(task.tokenizer)},
        "storage": {"local_storage": {"path": str(task.folder / "reports")}},
    }
    config = task.folder / "config.yml"
    config.write_text(json.dumps(settings), encoding="utf-8")
    return (str(program("inference-perf", "inference-perf")), "--config_file", str(config))


def _vllm(task: Task) -> tuple[str, ...]:
    return (
        *(str(program("vllm", "vllm")), "bench", "serve", "--backend", "openai-chat"),
        *("--base-url", task.url, "--endpoint", "/v1/chat/completions"),
        *("--model", task.model, "--tokenizer", str(task.tokenizer), "--seed", "1"),
        *("--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)),
        *("--random-output-len", str(ANSWER_TOKENS), "--num-prompts", str(task.requests)),
        *("--max-concurrency", "1", "--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--save-result", "--result-dir", str(task.folder), "--result-filename", "vllm.json"),
    )


def _genai_bench(task: Task) -> tuple[str, ...]:
    return (
        *(str(program("genai-bench", "genai-bench")), "benchmark", "--api-backend", "openai"),
        *("--api-base", task.url, "--api-key", "none", "--api-model-name", task.model),
        *("--model-tokenizer", str(task.tokenizer), "--task", "text-to-text"),
        *("--traffic-scenario", f"D({PROMPT_TOKENS},{ANSWER_TOKENS})", "--num-concurrency", "1"),
        *("--max-requests-per-run", str(task.requests), "--max-time-per-run", "5"),
        *("--experiment-base-dir", str(task.folder), "--experiment-folder-name", "run"),
        *("--log-dir", str(task.folder)),
    )


TOOLS = {
    # Offline it takes no folder for a tokenizer, only a name in a hub's cache.
    "aiperf": Tool(_aiperf, report.read_aiperf, {}),
    "guidellm": Tool(_guidellm, report.read_guidellm),
    "evalscope": Tool(_evalscope, report.read_evalscope),
    "inference-perf": Tool(_inference_perf, report.read_inference_perf),
    "vllm": Tool(_vllm, report.read_vllm),
    "genai-bench": Tool(_genai_bench, report.read_genai_bench),
}
