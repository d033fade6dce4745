"""`python -m scripts.clients [CLIENT ...]`: installs clients of other projects, runs each against
nodes of this machine, and prints its working features.

Exit status 0 only if every cell of each table holds.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from scripts.clients import agent_table, load_table
from scripts.clients.install import install
from tests.harness.dictated_node import template_names


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.clients", description=__doc__)
    known = (*agent_table.CLIENTS, *load_table.CLIENTS)
    parser.add_argument("clients", nargs="*", choices=[*known, []], default=[])
    parser.add_argument("--template", choices=template_names(), default="qwen3_8")
    parser.add_argument(
        "--arrangement", choices=agent_table.ARRANGEMENTS, help="one of them; both by default"
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="write the agents' rows into docs/results/agent_clients.md",
    )
    asked = parser.parse_args()
    chosen = asked.clients or known
    for client in chosen:
        install(client)
    folder = Path(tempfile.mkdtemp(prefix="tasuki-clients-"))
    good = True
    agents = [client for client in chosen if client in agent_table.CLIENTS]
    load = [client for client in chosen if client in load_table.CLIENTS]
    if agents:
        for arrangement in [asked.arrangement] if asked.arrangement else agent_table.ARRANGEMENTS:
            run = agent_table.AgentRun(arrangement, asked.template, folder, asked.record)
            good &= run.run(agents)
    if load:
        good &= load_table.run_load(load, folder)
    print(f"clients: {'PASSED' if good else 'FAILED'}; outputs are in {folder}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
