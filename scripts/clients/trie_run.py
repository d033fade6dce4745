"""Runs the load generator tokenspeed-trie, unmodified, and prints its counts as JSON.

`python trie_run.py ENDPOINT MODEL TOKENIZER_FOLDER WORKLOAD_JSONL SECONDS`, by the interpreter of
trie's environment. One conversation at a time: then trie cuts none in the middle, and its counts
cover all its requests.
"""

import json
import sys
from dataclasses import asdict

from trie.client import Client


def main(endpoint: str, model: str, tokenizer: str, workload: str, seconds: str) -> None:
    client = Client(endpoint, model, tokenizer_model=tokenizer, api_key="none", seed=1)
    result = client.sync_run(workload, concurrency=1, duration=float(seconds), stream=True)
    counted = {
        "completed": result.completed_requests,
        "failed": result.failed_requests,
        "traces": [asdict(metrics) for metrics in result.server_metrics],
    }
    print("\n" + json.dumps(counted))


if __name__ == "__main__":
    main(*sys.argv[1:])
