"""`tasuki bench transfer`: a transfer's rate against its link's rate, and the share of its time
overlapped by compute.

With two GPUs: layer chunks of scattered blocks, transfers during prefill, whole nodes. On a CPU:
bytes through NIXL beside a raw put of the same bytes, and posting cost. Also control round trips,
early starts of decoding, and fewer bytes on the wire.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from tasuki.bench.measure.report import Row
from tasuki.transfer.transports.nixl.transport import installed_package
from tasuki.utils.flags import parse_configs
from tasuki.utils.options import Auto, option

from .config import BenchConfig, free_memory
from .errors import BenchError

_SHARED_MIB = 12 * 1024
_GPU_PARTS = ("blocks", "engine", "nodes")
_CPU_PARTS = ("digest", "goodput", "control", "early", "wire")


@dataclass(frozen=True)
class TransferConfig:
    parts: str = option(
        "",
        "of the rows, by commas: blocks,engine,nodes (GPU), digest,goodput,control,early,wire",
    )
    transport: str = option("peer_copy", "between the GPUs", ("peer_copy", "nixl", "auto"))
    prompt: int = option(50_000, "tokens that are handed over")
    turn: int = option(800, "tokens that a cached turn adds")
    repeats: int = option(3, "of each hand-over; the median counts")
    receiver_mib: int = option(8192, "of the receiver's arena")


def main(argv: Sequence[str]) -> int:
    config, own = parse_configs(
        "tasuki bench transfer", "Time hand-overs.", argv, BenchConfig, TransferConfig
    )
    on_gpu = config.device == "cuda"
    if on_gpu and torch.cuda.device_count() < 2:
        raise BenchError("transfer between GPUs needs two of them: give --device cpu")
    if config.tensor_parallel > 1 and own.parts != "nodes":
        raise BenchError(
            "tensor_parallel is measured of whole nodes that hand over to each other: give "
            "--parts nodes, or leave it out"
        )
    parts = own.parts.split(",") if own.parts else list(_GPU_PARTS if on_gpu else _CPU_PARTS)
    report = config.reported(f"transfer {'gpu' if on_gpu else 'cpu'}")
    if not on_gpu:
        report.note(
            f"load average at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        )
    for row in _rows(parts, config, own):
        if isinstance(row, str):
            report.note(row)
        else:
            report.add(row)
    return 0


def _rows(parts: Sequence[str], config: BenchConfig, own: TransferConfig) -> Iterator[Row | str]:
    if "blocks" in parts:
        from tasuki.bench.handover.blocks import block_rows

        # NIXL's rows are for comparison.
        for kind in dict.fromkeys([own.transport, *(["nixl"] if installed_package() else [])]):
            yield from block_rows(kind, torch.device("cuda", 0), torch.device("cuda", 1))
    if "engine" in parts or "nodes" in parts:
        yield from _model_rows(parts, config, own)
    if set(parts).intersection(_CPU_PARTS):
        from tasuki.bench.handover import control, goodput, slow_link

        rows = {
            "digest": goodput.digest_rows,
            "goodput": goodput.goodput_rows,
            "control": control.control_rows,
            "early": slow_link.early_rows,
            "wire": slow_link.wire_rows,
        }
        for part in _CPU_PARTS:
            if part in parts:
                yield from rows[part]()


def _model_rows(
    parts: Sequence[str], config: BenchConfig, own: TransferConfig
) -> Iterator[Row | str]:
    from tasuki.bench.handover.gpu_rows import (
        Workload,
        engine_rows,
        first_token_rows,
        ranks_rows,
    )

    model = config.model_config()
    work = Workload(own.prompt, own.turn, own.repeats)
    sender, receiver = ("cuda:0", "cuda:1") if config.device == "cuda" else ("cpu", "cpu")
    kind = own.transport if config.device == "cuda" else "nixl"
    if config.tensor_parallel > 1:
        # Two nodes share a GPU, so neither may have all of it.
        mib = _SHARED_MIB if isinstance(config.arena_mib, Auto) else config.arena_mib
        of_one = replace(config.of_ranks(), tensor_parallel=1, arena_mib=mib)
        yield from ranks_rows(model, of_one, config.tensor_parallel, config.device, kind, work)
        return
    for form in config.forms:
        if form.quantization:
            raise BenchError("transfer moves what pages hold: leave out quantization")
        engine = config.engine_config(form)
        layout = model.cache_layout(engine.stored_kv, config.dtype, config.ssm_dtype)
        slabs = own.receiver_mib * 2**20 // layout.slab_bytes
        if "engine" in parts:
            for row in engine_rows(model, engine, receiver, kind, slabs, work):
                yield form.row(row, None)
        if "nodes" in parts:
            for row in first_token_rows(model, engine, (sender, receiver), kind, work):
                yield form.row(row, None)
        free_memory(config.torch_device)
