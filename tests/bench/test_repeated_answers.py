"""Tests of a free model's answers with repeated text."""

from itertools import islice
from pathlib import Path

import numpy as np
import torch

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
