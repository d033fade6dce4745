"""A free model's answers that repeat a text, and the cores of a bench's processes."""

import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.front_workers.cores import cores_of, pinned
from tasuki.bench.load.free.tokens import Repeated


def test_repeated_answers_at_each_position_are_the_texts_tokens(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    path.write_text("[7, 8, 9]")
    answers = Repeated.read(path)
    positions = np.arange(5)
    assert answers(positions, positions, 16).tolist() == [7, 8, 9, 7, 8]
    as_tensor = torch.arange(5)
    assert answers(as_tensor, as_tensor, 16).tolist() == [7, 8, 9, 7, 8]
    assert [int(answers(0, place, 16)) for place in islice(range(3, 99), 3)] == [7, 8, 9]


def test_cores_of_a_list_are_its_numbers_and_its_ranges() -> None:
    assert cores_of("0-2,5") == [0, 1, 2, 5]
    assert cores_of("") == []
    with pytest.raises(ValueError, match="invalid literal"):
        cores_of("all")


def test_pinned_thread_runs_on_the_cores_inside_and_as_before_behind() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    with pinned([core]):
        assert os.sched_getaffinity(0) == {core}
    assert os.sched_getaffinity(0) == before
    with pinned([]):
        assert os.sched_getaffinity(0) == before
