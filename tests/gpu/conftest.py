"""Whole models on a GPU; skipped if there is none."""

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="PyTorch sees no GPU here")
    for item in items:
        if "tests/gpu/" in item.nodeid:
            item.add_marker(skip)
