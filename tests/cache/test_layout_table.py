"""The published layouts and their links have the numbers of the code before declared parts."""

import json
from typing import Any

import pytest

from .layout_table import TABLE, Shape, of_shape, shapes

_TABLE: dict[str, dict[str, Any]] = json.loads(TABLE.read_text())
_FIRST = [shape for shape in shapes() if shape.drafts and shape.kv == "bfloat16"][::2]


@pytest.mark.parametrize("shape", _FIRST, ids=lambda shape: shape.name)
def test_layouts_links_digests_and_contract_are_as_before(shape: Shape) -> None:
    assert json.loads(json.dumps(of_shape(shape))) == _TABLE[shape.name]


@pytest.mark.slow
@pytest.mark.parametrize("shape", shapes(), ids=lambda shape: shape.name)
def test_every_published_layout_is_as_before(shape: Shape) -> None:
    assert json.loads(json.dumps(of_shape(shape))) == _TABLE[shape.name]


def test_the_table_has_every_shape() -> None:
    assert list(_TABLE) == [shape.name for shape in shapes()]
