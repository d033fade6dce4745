"""Cached tokens that successive requests see, page 64: the table that operators compare engines
by."""

import numpy as np
import pytest
from tasuki.engine.config import EngineConfig

from tests.harness.engines import Lone, submit, tiny_parts


def fresh() -> Lone:
    config = EngineConfig(model="tiny", dtype="float32", prefill_chunk_tokens=2048)
    return Lone(config, parts=tiny_parts(arena_mib=24))


def text(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 128, length).tolist()


class Requests:
    """Sends one after another; answers how many tokens were usable."""

    def __init__(self) -> None:
        self.engine = fresh()
        self.sent = 0

    def usable(self, prompt: list[int], new_tokens: int = 1, marks: tuple[int, ...] = ()) -> int:
        name = f"r{self.sent}"
        self.sent += 1
        self.engine.post(submit(name, prompt, new_tokens, marks=marks))
        self.engine.run()
        self.answer = self.engine.tokens(name)
        hit = self.engine.finished(name).usage.hit
        assert hit is not None
        assert hit.usable_tokens + sum(hit.causes.values()) == len(prompt)
        return hit.usable_tokens


def test_a_shared_prefix_of_640_serves_every_sharer_from_the_third() -> None:
    requests = Requests()
    shared = text(640, 1)
    seen = [requests.usable(shared + text(1920, 10 + i)) for i in range(5)]
    assert seen == [0, 0, 640, 640, 640]


def test_with_a_mark_it_serves_the_second_sharer() -> None:
    requests = Requests()
    shared = text(640, 1)
    seen = [requests.usable(shared + text(1920, 10 + i), marks=(640,)) for i in range(4)]
    assert seen == [0, 640, 640, 640]


@pytest.mark.parametrize(("length", "want"), [(640, 576), (641, 640), (700, 640)])
def test_an_identical_prompt_hits_from_its_second_time(length: int, want: int) -> None:
    requests = Requests()
    seen = [requests.usable(text(length, 2)) for _ in range(3)]
    assert seen[0] == 0 and min(seen[1:]) >= want


def test_turns_resume_at_the_exact_end_of_the_one_before() -> None:
    requests = Requests()
    log = text(1000, 3)
    seen = [requests.usable(log, 2)]
    for seed in (4, 5, 6):
        log = log + requests.answer + text(100, seed)
        seen.append(requests.usable(log, 2))
    assert [len(log)] == [1306]
    assert seen == [0, 1001, 1103, 1205]


def test_a_decoded_answer_is_resumed_at_its_last_forwarded_token() -> None:
    requests = Requests()
    prompt = text(1000, 7)
    requests.usable(prompt, 300)
    assert requests.usable(prompt + requests.answer + text(50, 8)) == 1299


def test_a_branch_inside_an_answer_reuses_its_whole_pages() -> None:
    requests = Requests()
    prompt = text(1000, 7)
    requests.usable(prompt, 300)
    trunk = (prompt + requests.answer)[:1150]
    first = requests.usable(trunk + text(80, 9))
    assert first >= 960
    assert requests.usable(trunk + text(80, 10)) >= 1088
