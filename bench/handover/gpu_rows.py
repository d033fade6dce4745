"""Measured rows of transfers between two GPUs of one host: behind the forward's compute, over a
throttled link, and small."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from statistics import mean, median
from typing import Any

from tasuki.bench.measure.report import Row
from tasuki.engine.config import EngineConfig
from tasuki.model.config import ModelConfig
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.transfer.chunks.descriptors import chunk_bytes

from .nodes import node_pair
from .prefill import HandedOver, PrefillRig, pages_of
from .process import spawned
from .receiving import Place, receiving_peer

EXPOSED_SECONDS = 1e-3
TURN_SECONDS = 1.5e-3
SLOWED = 0.02
THROTTLE_BYTES = 5e9
THROTTLED_CHUNKS = 1.3
TTFT_SECONDS = 3e-3
UNEQUAL_SECONDS = 1.5e-3
_WAY_SECONDS = 1800.0
# Hand-overs without a result: the first ones measure the connection's cost.
_WARMUPS = 2


@dataclass(frozen=True)
class Workload:
    """Sizes of the measured work. prompt: tokens of a prompt. turn: new tokens of a further turn.
    repeats: runs for each row, with new prompts each time."""

    prompt: int
    turn: int
    repeats: int


def engine_rows(
    model: ModelConfig,
    config: EngineConfig,
    other: str,
    kind: str,
    slabs: int,
    work: Workload,
) -> Iterator[Row]:
    """Yield the rows of a prefill engine. other: the receiver's device. kind: name of the
    transport. slabs: size of both arenas in slabs."""
    layout = model.cache_layout(config.stored_kv, config.compute_dtype, config.ssm_dtype)
    with receiving_peer(layout, slabs, Place(other, kind)) as peer:
        rig = PrefillRig(model, config, kind, peer, slabs)
        try:
            yield from _hidden_rows(rig, work)
            yield _turn_row(rig, work)
            yield _throttled_row(rig, work)
        finally:
            rig.close()


def _hidden_rows(rig: PrefillRig, work: Workload) -> Iterator[Row]:
    sending, resting = [], []
    # In turn, since a GPU's clock drifts; the first ones warm up.
    for _ in range(_WARMUPS + work.repeats):
        rig.flush()
        sending.append(rig.hand_over(rig.prompt(work.prompt)))
        rig.flush()
        resting.append(rig.hand_over(rig.prompt(work.prompt), held_pages=pages_of(work.prompt)))
    sending, resting = sending[_WARMUPS:], resting[_WARMUPS:]
    exposed = median(run.report.exposed_seconds for run in sending)
    yield Row(
        f"{work.prompt}-token hand-over during prefill: exposed",
        exposed,
        target=f"<= {EXPOSED_SECONDS * 1e3:g} ms",
        met=exposed <= EXPOSED_SECONDS,
        extra=_about(sending)
        | {"slowest exposed ms": 1e3 * max(run.report.exposed_seconds for run in sending)},
    )
    with_chunks = median(run.forward for run in sending)
    without = median(run.forward for run in resting)
    yield Row(
        "its forward, windows of KV and state beside it",
        with_chunks,
        without,
        target=f"slowed < {SLOWED:.0%} against state alone",
        met=with_chunks / without - 1 < SLOWED,
        extra={"slowed %": 100 * (with_chunks / without - 1)},
    )


def _turn_row(rig: PrefillRig, work: Workload) -> Row:
    """Measure turns. Each turn extends the previous prompt; both nodes already hold the previous
    prompt's pages."""
    rig.flush()
    prompt = rig.prompt(work.prompt)
    rig.hand_over(prompt)
    turns = []
    for _ in range(1 + work.repeats):
        held = len(prompt) // PAGE_TOKENS
        prompt = prompt + rig.prompt(work.turn)
        turns.append(rig.hand_over(prompt, held_pages=held))
    turns = turns[1:]
    exposed = median(run.report.exposed_seconds for run in turns)
    return Row(
        f"hand-over of a cached turn, +{work.turn} tokens: exposed",
        exposed,
        target=f"<= {TURN_SECONDS * 1e3:g} ms beyond compute",
        met=exposed <= TURN_SECONDS,
        extra=_about(turns),
    )


def _throttled_row(rig: PrefillRig, work: Workload) -> Row:
    rig.link.bytes_per_second = THROTTLE_BYTES
    runs = []
    for _ in range(_WARMUPS + work.repeats):
        rig.flush()
        runs.append(rig.hand_over(rig.prompt(work.prompt)))
    runs = runs[_WARMUPS:]
    rig.link.bytes_per_second = None
    last = max(runs[0].report.digests, key=lambda d: d.header.sequence).header
    wire = chunk_bytes(rig.layout, last) / THROTTLE_BYTES
    exposed = median(run.report.exposed_seconds for run in runs)
    return Row(
        f"the same over {THROTTLE_BYTES / 1e9:g} GB/s (throttled in the sender): exposed",
        exposed,
        wire,
        target=f"<= {THROTTLED_CHUNKS:g}x the last window's wire time",
        met=exposed <= THROTTLED_CHUNKS * wire,
        extra=_about(runs),
    )


def _about(runs: list[HandedOver]) -> dict[str, float]:
    report = runs[-1].report
    last = [run.last_chunk for run in runs]
    return {
        "verified ms": 1e3 * median(run.verified for run in runs),
        "MB": report.bytes / 1e6,
        "windows": report.windows,
        "last window begun us": 1e6 * median(w.begun - w.finished for w in last),
        "posted us": 1e6 * median(w.posted - w.finished for w in last),
        "flushed us": 1e6 * median(w.flushed - w.finished for w in last),
        "hidden ms": 1e3 * median(run.report.hidden_seconds for run in runs),
        "forward ms": 1e3 * median(run.forward for run in runs),
    }


def first_token_rows(
    model: ModelConfig, config: EngineConfig, devices: tuple[str, str], kind: str, work: Workload
) -> Iterator[Row]:
    """Measure first tokens with the prefill node on either GPU, and the mean of the extra time over
    a fused node. Two GPUs of one make differ by more than the target. In the mean each GPU has
    computed prompts for both kinds of node."""
    first, second = devices
    found = []
    for way in dict.fromkeys([(first, second), (second, first)]):
        nodes = [replace(config, device=device) for device in way]
        arguments = (model, *nodes, kind, work)
        with spawned("the decode node", _first_token_process, *arguments) as process:
            fused, apart, exposed = process.received(_WAY_SECONDS)
        beyond = median(apart) - median(fused)
        found.append((median(apart), median(fused), len(exposed) == len(apart)))
        yield Row(
            f"first token at {work.prompt} tokens, {way[0]} to {way[1]}, {kind}",
            median(apart),
            median(fused),
            extra={
                f"fused on {way[1]} ms": 1e3 * median(fused),
                "beyond fused ms": 1e3 * beyond,
                "exposed ms": 1e3 * median(exposed) if exposed else float("nan"),
                "handed over": len(exposed),
            },
        )
    apart_mean, fused_mean = mean(way[0] for way in found), mean(way[1] for way in found)
    yield Row(
        f"first token at {work.prompt} tokens, mean of both ways",
        apart_mean,
        fused_mean,
        target=f"<= fused + {TTFT_SECONDS * 1e3:g} ms",
        met=apart_mean <= fused_mean + TTFT_SECONDS and all(way[2] for way in found),
        extra={"beyond fused ms": 1e3 * (apart_mean - fused_mean)},
    )


def ranks_rows(
    model: ModelConfig, config: EngineConfig, ranks: int, device: str, kind: str, work: Workload
) -> Iterator[Row]:
    """Measure transfers between a node of one rank and a node of several ranks, in both directions.
    On GPUs both nodes use the first GPU. config: settings of the one-rank node. ranks: ranks of the
    other node. device: cuda or cpu."""
    judged = device == "cuda"
    one = "cuda:0" if judged else device
    for senders, receivers in ((ranks, 1), (1, ranks)):
        nodes = [
            replace(config, tensor_parallel=count, device=device if count > 1 else one)
            for count in (senders, receivers)
        ]
        arguments = (model, *nodes, kind, work)
        with spawned("the decode node", _first_token_process, *arguments) as process:
            fused, apart, exposed = process.received(_WAY_SECONDS)
        shown = median(exposed) if exposed else float("nan")
        yield Row(
            f"first token at {work.prompt} tokens, {senders} ranks to {receivers}, {kind}: exposed",
            shown,
            target=f"<= {UNEQUAL_SECONDS * 1e3:g} ms" if judged else "",
            met=len(exposed) == len(apart) and shown <= UNEQUAL_SECONDS if judged else None,
            extra={
                "first token ms": 1e3 * median(apart),
                "computed by the decode node ms": 1e3 * median(fused),
                "handed over": len(exposed),
            },
        )


def _first_token_process(channel: Connection, *way: Any) -> None:
    """Run the decode node in a separate process, so neither GPU holds memory of another node. way:
    arguments of _first_tokens()."""
    channel.send(asyncio.run(_first_tokens(*way)))


async def _first_tokens(
    model: ModelConfig, prefill: EngineConfig, decode: EngineConfig, kind: str, work: Workload
) -> tuple[list[float], list[float], list[float]]:
    """Return three lists of seconds. The first two hold times to first tokens: by the decode node
    alone, and with a prefill node. The third holds transfer seconds after the forward's end."""
    there, here = [], []
    async with node_pair(model, prefill, decode, kind) as pair:
        for _ in range(_WARMUPS + work.repeats):
            pair.prefill_there()
            there.append(await pair.ask(pair.prompt(work.prompt)))
            pair.prefill_here()
            here.append(await pair.ask(pair.prompt(work.prompt)))
    there, here = there[_WARMUPS:], here[_WARMUPS:]
    transfers = [answer.usage.transfer for answer in there]
    return (
        [answer.seconds for answer in here],
        [answer.seconds for answer in there],
        [transfer.exposed_seconds for transfer in transfers if transfer is not None],
    )
