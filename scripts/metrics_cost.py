"""What metrics cost: one node with them and one without, asked in turns within one run.

python -m scripts.metrics_cost [--rounds 12] [--tokens 300] [--clients 4]

Wall time says what a client sees; CPU time of the node's process says the same on a machine that
others use too. Each round asks both nodes, in an order that alternates; ratios are of rounds.
"""

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tasuki.client.embedded import embedded_model
from tasuki.client.launcher import Daemon
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Spent:
    wall: float
    cpu: float


class Node:
    def __init__(self, stack: ExitStack, metrics: str) -> None:
        model = str(embedded_model())
        flags = ["--model", model, "--dtype", "float32", "--arena-mib", "64", "--metrics", metrics]
        self._daemon = Daemon("serve", [*flags, "--http-bind", "127.0.0.1:0"])
        stack.callback(self._daemon.stop)
        self._client = stack.enter_context(Client(self._daemon.wait_ready()))

    def answer(self, clients: int, tokens: int) -> Spent:
        """`clients` answers of `tokens` tokens side by side."""
        cpu, began = self._cpu_seconds(), time.monotonic()
        streams = [
            self._client.generate(
                Prompt(token_ids=[1 + number] * 70), max_new_tokens=tokens, ignore_eos=True
            )
            for number in range(clients)
        ]
        for stream in streams:
            stream.result()
        return Spent(time.monotonic() - began, self._cpu_seconds() - cpu)

    def _cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICK


def ratios(rounds: int, clients: int, tokens: int) -> tuple[list[float], list[float]]:
    """With metrics over without: wall times and CPU times of each round."""
    with ExitStack() as stack:
        told, silent = Node(stack, "on"), Node(stack, "off")
        for node in (told, silent):
            node.answer(clients, tokens)
        wall, cpu = [], []
        for number in range(rounds):
            order = (told, silent) if number % 2 else (silent, told)
            spent = {node: node.answer(clients, tokens) for node in order}
            wall.append(spent[told].wall / spent[silent].wall)
            cpu.append(spent[told].cpu / spent[silent].cpu)
    return wall, cpu


def line(name: str, values: Sequence[float]) -> str:
    middle = statistics.median(values)
    low, _, high = statistics.quantiles(values, n=4)
    return (
        f"{name:<10} {100 * (middle - 1):+.2f} % in the median of {len(values)} rounds, "
        f"half of them from {100 * (low - 1):+.2f} to {100 * (high - 1):+.2f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What metrics cost a node that decodes.")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--clients", type=int, default=4)
    given = parser.parse_args()
    wall, cpu = ratios(given.rounds, given.clients, given.tokens)
    print(line("wall time", wall))
    print(line("CPU time", cpu))


if __name__ == "__main__":
    main()
