"""Users for the load generator locust: chats of several turns; the answers must report cached
tokens.

Prints one line of JSON at the end: turns, failures, and the cached tokens reported by answers.
"""

import json
import random

from locust import HttpUser, constant, events, task

counts = {"turns": 0, "failed": 0, "cached_tokens": 0}
_WORDS = ("house", "road", "letter", "aunt", "sister", "walk", "dinner", "ball", "room", "window")


class Talker(HttpUser):
    wait_time = constant(0.05)

    @task
    def talk(self) -> None:
        rng = random.Random()
        messages: list[dict[str, str]] = []
        for _ in range(3):
            words = " ".join(rng.choice(_WORDS) for _ in range(60))
            messages.append({"role": "user", "content": words})
            body = {"messages": messages, "max_tokens": 12, "temperature": 0}
            with self.client.post("/v1/chat/completions", json=body, catch_response=True) as reply:
                counts["turns"] += 1
                if reply.status_code != 200:
                    counts["failed"] += 1
                    reply.failure(reply.text)
                    return
                answer = reply.json()
                usage = answer["usage"]["prompt_tokens_details"]
                counts["cached_tokens"] += usage["cached_tokens"]
                messages.append(
                    {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
                )


@events.quitting.add_listener
def print_counts(environment: object, **_: object) -> None:
    print(json.dumps(counts), flush=True)
