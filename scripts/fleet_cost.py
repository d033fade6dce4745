"""What `tasuki dashboard` costs over many nodes: processor time, memory, and each view's time.

    python -m scripts.fleet_cost --nodes 1000 --seconds 60

Nodes are sockets of another process on loopback, all of which answer one imagined node's /metrics.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import resource
import time
from multiprocessing.connection import Connection

from tasuki.cli.fleet.node_poll import NodePoll
from tasuki.cli.fleet.poll_settings import Credentials, PollLimits
from tasuki.dashboard.fleet.fleet import Fleet
from tests.harness.imagined_fleet import imagined_nodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="measured, after as many before"
    )
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    nodes = multiprocessing.get_context("spawn").Process(
        target=_answer, args=(theirs, arguments.nodes), daemon=True
    )
    nodes.start()
    asyncio.run(_watch(ours.recv(), arguments.seconds))
    nodes.terminate()


def _answer(ready: Connection, count: int) -> None:
    """The nodes, until the process ends."""
    _, node, *_ = imagined_nodes(1, 8, 0.0)
    chance = random.Random(1)
    node.live(60.0, 1.0, chance)
    body = node.text(chance).encode()
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(reply)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def serve_all() -> None:
        servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for _ in range(count)]
        names = [server.sockets[0].getsockname() for server in servers]
        ready.send([f"{host}:{port}" for host, port in names])
        await asyncio.Event().wait()

    asyncio.run(serve_all())


async def _watch(addresses: list[str], seconds: float) -> None:
    fleet = Fleet()
    async with NodePoll(fleet, Credentials(), PollLimits()) as poll:
        await poll.ask_these(addresses)
        await asyncio.sleep(seconds)
        begun = time.process_time()
        await asyncio.sleep(seconds)
        share = (time.process_time() - begun) / seconds
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answering = fleet.summary(time.time())["totals"]["levels"].get("fine", 0)
    print(f"{len(addresses)} nodes, {answering} answer: {share:.1%} of a core, {memory:.0f} MiB")
    for name, view in (
        ("summary", lambda: fleet.summary(time.time())),
        ("nodes", lambda: fleet.nodes("", "trouble", 0, 50)),
        ("links", lambda: fleet.links("")),
        ("callers", lambda: fleet.callers("")),
    ):
        begun = time.process_time()
        size = len(json.dumps(view()))
        took = time.process_time() - begun
        print(f"  {name:<8} {1000 * took:6.1f} ms of CPU, {size / 1000:.1f} KB")


if __name__ == "__main__":
    main()
