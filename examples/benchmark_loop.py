"""A benchmark in a loop: runs sessions of several turns, and prints first-token times and cached
shares by turn.

`python examples/benchmark_loop.py 127.0.0.1:7000 [SESSIONS] [TURNS]`
"""

import random
import statistics
import sys

from tasuki.client import Client, Prompt


def main(target: str, sessions: str = "4", turns: str = "5") -> None:
    rng = random.Random(7)
    first: list[list[float]] = [[] for _ in range(int(turns))]
    cached: list[list[float]] = [[] for _ in range(int(turns))]
    with Client(target) as client:
        for _ in range(int(sessions)):
            with client.open_session() as session:
                for turn in range(int(turns)):
                    length = 400 if turn == 0 else 60
                    tokens = [rng.randrange(256, 2000) for _ in range(length)]
                    session.append(Prompt(token_ids=tokens))
                    answer = session.generate(max_new_tokens=16, ignore_eos=True).result()
                    usage = answer.usage
                    first[turn].append(usage.time_to_first_token)
                    usable = 0 if usage.hit is None else usage.hit.usable_tokens
                    cached[turn].append(usable / usage.prompt_tokens)
    print("turn  first token  cached")
    for turn, (seconds, shares) in enumerate(zip(first, cached, strict=True), 1):
        median = 1000 * statistics.median(seconds)
        print(f"{turn:>4}  {median:8.1f} ms  {statistics.mean(shares):6.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
