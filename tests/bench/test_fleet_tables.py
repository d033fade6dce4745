"""Tests of the fleet's tables: each row is a valid command of `tasuki simulate`."""

from pathlib import Path

import pytest

from tasuki.bench.fleet import main as simulate
from tasuki.bench.fleet.tables import NAMES, rows


class _Asked(Exception):
    """Error raised in place of a simulation."""


@pytest.mark.parametrize("table", NAMES)
def test_every_row_can_be_asked_for(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(path: Path, limit: int | None) -> None:
        raise _Asked

    monkeypatch.setattr(simulate, "load_trace", asked)
    found = list(rows(table))
    assert len(found) == len(set(found)) > 2
    assert any("one-cache" in flags for flags in found)
    for flags in found:
        with pytest.raises(_Asked):
            simulate.main(["trace.jsonl", *flags])
