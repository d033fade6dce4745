"""Times TokenSpeed's scheduler, in either of its two releases, through its public calls. Prints one
JSON object.

Runs in the peer's own virtual environment. TokenSpeed exposes no separate match or insert. The row
"match" times the planning of a prefill. The row "publish" times the calls after the answer. A
request is all of these calls. Lists become C++ vectors inside submit, and this time counts.
"""

import json
import sys
from typing import Any

import tokenspeed_scheduler as peer
from timing import CLOCK_NS, median_us, now, percentile_us, quiet
from workloads import LENGTHS, PAGE, SHORT_BATCH, Agents, Tokens, prompt, short_prompts

Row = dict[str, float]


def scheduler(tokens: int, states: int, chunk: int) -> Any:
    """Return a scheduler with a pool of recurrent states, for the installed TokenSpeed release."""
    pages = tokens // PAGE + 4 * states + 256
    config = peer.SchedulerConfig()
    config.max_scheduled_tokens = chunk
    config.max_batch_size = 256
    config.disable_l2_cache = True
    config.disable_prefix_cache = False
    config.decode_input_tokens = 1
    config.num_device_pages = pages
    config.num_host_pages = 0
    if not hasattr(peer, "CacheGroupConfig"):
        setattr(config, "block_size" if hasattr(config, "block_size") else "page_size", PAGE)
        config.enable_mamba = True
        config.mamba_pool_total_chunks = states
        config.mamba_cache_chunk_size = PAGE
        return peer.Scheduler(config)
    config.prefix_granularity = PAGE
    if hasattr(config, "num_snapshot_pages"):
        config.num_snapshot_pages = 1
    config.cache_groups = [
        peer.CacheGroupConfig(
            group_id=name,
            block_granularity=grain,
            total_pages=pages,
            attn_kind=kind,
        )
        for name, grain, kind in (
            ("full", PAGE, peer.AttnKind.Full),
            ("state", 0, peer.AttnKind.State),
        )
    ]
    return peer.Scheduler(config)


def event(kind: Any, request: str, tokens: list[int] | None = None) -> Any:
    one = kind()
    one.request_id = request
    if tokens is not None:
        one.tokens = tokens
    wrapped = peer.ExecutionEvent()
    wrapped.add_event(one)
    return wrapped


def spec(name: str, tokens: list[int]) -> Any:
    request = peer.RequestSpec()
    request.request_id = name
    request.tokens = tokens
    if hasattr(request, "max_new_tokens"):
        request.max_new_tokens = 1
    return request


def serve(pool: Any, requests: list[tuple[str, list[int]]]) -> tuple[int, int]:
    """Serve all requests concurrently. Returns two nanosecond counts: submit and prefill plans, and
    all later calls. Raises RuntimeError for unscheduled ones."""
    specs = [spec(name, tokens) for name, tokens in requests]
    samples = [event(peer.ForwardEvent.ExtendResult, name, [7]) for name, _ in requests]
    decodes = [event(peer.ForwardEvent.ExtendResult, name, [8]) for name, _ in requests]
    ends = [event(peer.ForwardEvent.Finish, name) for name, _ in requests]
    left = {name: len(tokens) for name, tokens in requests}
    start = now()
    pool.submit_requests(specs)
    planning = now() - start - CLOCK_NS
    seen: set[str] = set()
    idle = waiting = 0
    while left:
        start = now()
        plan = pool.next_execution_plan()
        planning += now() - start - CLOCK_NS
        idle = idle + 1 if len(left) == waiting else 0
        waiting = len(left)
        if idle > 2:
            raise RuntimeError(f"{len(left)} requests of {len(requests)} are never scheduled")
        for forward in plan.forward:
            cached = list(forward.extend_prefix_lens)
            for i, name in enumerate(forward.request_ids):
                if name not in left:
                    continue
                if name not in seen and cached:
                    left[name] -= cached[i]
                seen.add(name)
                left[name] -= list(forward.input_lengths)[i]
                if left[name] <= 0:
                    del left[name]
    start = now()
    for sample in samples:
        pool.advance(sample)
    plan = pool.next_execution_plan()
    decoding = any(list(forward.request_ids) for forward in plan.forward)
    if decoding:
        for decode in decodes:
            pool.advance(decode)
    for end in ends:
        pool.advance(end)
    pool.next_execution_plan()
    return planning, now() - start - CLOCK_NS


def lengths(row: Row) -> None:
    for count in LENGTHS:
        pool = scheduler(2 * count, 64, 2_000_000)
        whole = prompt(count, count).tolist()
        serve(pool, [("cold", whole)])
        spent = []
        for repeat in range(3):
            request = spec(f"warm {repeat}", [*whole, 1, 2, 3])
            pool.submit_requests([request])
            start = now()
            pool.next_execution_plan()
            spent.append(now() - start)
            pool.advance(event(peer.ForwardEvent.ExtendResult, f"warm {repeat}", [7]))
            pool.advance(event(peer.ForwardEvent.Finish, f"warm {repeat}"))
            pool.next_execution_plan()
        row[f"match {count}, ns/token"] = percentile_us(spent, 50) * 1e3 / count


def agents(row: Row, sessions: int) -> None:
    pool = scheduler(sessions * 64_000, sessions * 40, 65_536)
    planned, followed, totals = [], [], []
    for number, turn in enumerate(Agents(sessions)):
        tokens = turn.log[: turn.prompt].tolist()
        plan, rest = serve(pool, [(str(number), tokens)])
        planned.append(plan)
        followed.append(rest)
        totals.append(plan + rest)
    late = slice(sessions, None)
    for label in ("agents with session", "agents without session"):
        row[f"{label}: match p50, us"] = percentile_us(planned[late], 50)
        row[f"{label}: publish p50, us"] = percentile_us(followed[late], 50)
        row[f"{label}: turns/s"] = len(totals) / sum(totals) * 1e9


def shorts(row: Row) -> None:
    batches: list[list[Tokens]] = short_prompts(40)
    pool = scheduler(40 * 64 * 512, 40 * 64 * 4, 65_536)
    for name in ("cold", "repeated"):
        spent = []
        for number, batch in enumerate(batches):
            requests = [(f"{name} {number} {i}", t.tolist()) for i, t in enumerate(batch)]
            spent.append(sum(serve(pool, requests)) + CLOCK_NS)
        each = percentile_us(spent, 50) / SHORT_BATCH
        row[f"256 tokens, 64 at a time, {name}: a request, us"] = each


def blocked(row: Row) -> None:
    pool = scheduler(300_000, 16, 2_000_000)
    pool.submit_requests([spec("live", prompt(1, 200_000).tolist())])
    pool.next_execution_plan()

    def step() -> None:
        pool.advance(event(peer.ForwardEvent.ExtendResult, "live", [1]))
        pool.next_execution_plan()

    alone = median_us(step, 20)
    pool.submit_requests([spec("big", prompt(2, 200_000).tolist())])
    row["a blocked request of 200,000 tokens adds a step, us"] = median_us(step, 20) - alone


def main(full: bool) -> None:
    quiet()
    row: Row = {}
    refused: dict[str, str] = {}
    for work in (
        lengths,
        lambda row: agents(row, 200 if full else 16),
        shorts,
        blocked,
    ):
        try:
            work(row)
        except Exception as error:  # a rejection of one part of the work is a result
            refused[getattr(work, "__name__", "work")] = f"{type(error).__name__}: {error}"
    if refused:
        print(json.dumps(refused), file=sys.stderr)
    print(json.dumps(row))


if __name__ == "__main__":
    main(full="--quick" not in sys.argv)
