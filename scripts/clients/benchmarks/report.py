"""A benchmark tool's report of its run, in one form for all. Pure but for reading its files."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Report:
    """Means over the run's requests, by the tool's own words and sums. None: it has no such
    figure. tokens: of one answer. per_token_ms, per_chunk_ms: the time after the first token."""

    requests: int
    failed: int
    first_ms: float | None
    answer_ms: float | None
    tokens: float | None
    per_token_ms: float | None
    per_chunk_ms: float | None
    whole_ms: float | None


def read_aiperf(folder: Path) -> Report:
    """Of `profile_export_aiperf.json` and the records beside it."""
    shown = _json(folder, "profile_export_aiperf.json")

    def mean(name: str) -> float | None:
        return shown[name]["avg"] if name in shown else None

    (records,) = folder.rglob("profile_export.jsonl")
    lines = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    failed = sum(1 for line in lines if line.get("error"))
    chunks = [
        gap
        for line in lines
        for gap in line["metrics"].get("inter_chunk_latency", {}).get("value", ())
    ]
    return Report(
        *(len(lines), failed, mean("time_to_first_token"), mean("time_to_first_output_token")),
        *(mean("output_sequence_length"), mean("inter_token_latency")),
        *(statistics.fmean(chunks) if chunks else None, mean("request_latency")),
    )


def read_guidellm(folder: Path) -> Report:
    """Of its report in JSON."""
    (benchmark,) = _json(folder, "guidellm.json")["benchmarks"]
    figures, totals = benchmark["metrics"], benchmark["metrics"]["request_totals"]

    def mean(name: str) -> float | None:
        return _number(figures.get(name, {}).get("successful", {}).get("mean"))

    latency = mean("request_latency")
    return Report(
        *(totals["total"], totals["errored"] + totals["incomplete"]),
        *(mean("time_to_first_token_ms"), mean("time_to_first_output_token_ms")),
        *(mean("output_token_count"), mean("inter_token_latency_ms"), None),
        None if latency is None else latency * 1000,
    )


def read_evalscope(folder: Path) -> Report:
    """Of `benchmark_summary.json`."""
    shown = _json(folder, "benchmark_summary.json")
    return Report(
        *(shown["Total Requests"], shown["Failed Requests"], shown["Avg TTFT (ms)"], None),
        *(shown["Avg Output Tokens"], shown["Avg TPOT (ms)"], shown["Avg ITL (ms)"]),
        shown["Avg Latency (s)"] * 1000,
    )


def read_inference_perf(folder: Path) -> Report:
    """Of `summary_lifecycle_metrics.json`."""
    shown = _json(folder, "summary_lifecycle_metrics.json")
    good = shown["successes"]

    def mean(name: str) -> float | None:
        found = (good["latency"].get(name) or {}).get("mean")
        return None if found is None else found * 1000

    return Report(
        *(good["count"] + shown["failures"]["count"], shown["failures"]["count"]),
        *(mean("time_to_first_token"), None, good["output_len"]["mean"]),
        *(mean("time_per_output_token"), mean("inter_token_latency"), mean("request_latency")),
    )


def read_vllm(folder: Path) -> Report:
    """Of the file that `--save-result` writes."""
    shown = _json(folder, "vllm.json")
    good = shown["completed"]
    return Report(
        *(shown["num_prompts"], shown["num_prompts"] - good, shown["mean_ttft_ms"], None),
        *(shown["total_output_tokens"] / good if good else None, shown["mean_tpot_ms"]),
        *(shown["mean_itl_ms"], shown.get("mean_e2el_ms")),
    )


def read_genai_bench(folder: Path) -> Report:
    """Of the file of its one run, whose times are in seconds."""
    (file,) = [file for file in folder.rglob("*.json") if "concurrency" in file.name]
    shown = json.loads(file.read_text(encoding="utf-8"))["aggregated_metrics"]
    figures = shown["stats"]

    def mean(name: str) -> float | None:
        return _number(figures[name]["mean"])

    def mean_ms(name: str) -> float | None:
        found = mean(name)
        return None if found is None else found * 1000

    return Report(
        *(shown["num_requests"], shown["num_error_requests"], mean_ms("ttft"), None),
        *(mean("num_output_tokens"), mean_ms("tpot"), None, mean_ms("e2e_latency")),
    )


def _json(folder: Path, name: str) -> Mapping[str, Any]:
    """The one file of that name. Raises ValueError where there is none, or several."""
    (file,) = folder.rglob(name)
    shown: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return shown


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
