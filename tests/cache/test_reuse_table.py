"""Cached tokens of successive requests, page 64: the table by which operators compare engines."""

import pytest

from tasuki.engine.messages import HitBreakdown
from tests.harness.engines import prompt as text
from tests.harness.engines import tiny_engine


class Requests:
    """Sends one after another; answers how many tokens were usable."""

    def __init__(self) -> None:
        self.engine = tiny_engine(arena_mib=24, prefill_chunk_tokens=2048)
        self.hits: list[HitBreakdown] = []

    def usable(self, prompt: list[int], new_tokens: int = 1, marks: tuple[int, ...] = ()) -> int:
        name = f"r{len(self.hits)}"
        self.answer = self.engine.ask(name, prompt, new_tokens, marks=marks)
        hit = self.engine.hit(name)
        assert hit.usable_tokens + sum(hit.causes.values()) == len(prompt)
        self.hits.append(hit)
        return hit.usable_tokens


@pytest.mark.parametrize(
    ("marks", "source", "seen"),
    [((), "branch", [0, 0, 640, 640, 640]), ((640,), "mark", [0, 640, 640, 640])],
    ids=["from the third on", "with a mark from the second on"],
)
def test_a_shared_prefix_of_640_serves_every_sharer(
    marks: tuple[int, ...], source: str, seen: list[int]
) -> None:
    requests, shared = Requests(), text(640, 1)
    found = [requests.usable(shared + text(1920, 10 + i), marks=marks) for i in range(len(seen))]
    assert found == seen
    assert requests.hits[seen.index(640)].checkpoint_source == source
    missed = requests.hits[seen.index(640) - 1].causes["never_checkpointed"]
    assert missed == (640 if source == "branch" else 0), "where nobody had left a state yet"


@pytest.mark.parametrize(("length", "want"), [(200, 192), (640, 576), (641, 640), (700, 640)])
def test_an_identical_prompt_hits_from_its_second_time(length: int, want: int) -> None:
    requests = Requests()
    seen, answers = [], []
    for _ in range(3):
        seen.append(requests.usable(text(length, 2), 4))
        answers.append(requests.answer)
    assert seen[0] == 0 and min(seen[1:]) >= want
    assert answers[0] == answers[1] == answers[2]


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
