"""Writes Grafana's dashboards, docs/grafana/*.json: python -m scripts.grafana"""

from pathlib import Path

from .boards import BOARDS
from .render import render

FOLDER = Path(__file__).parents[2] / "docs" / "grafana"

for board in BOARDS:
    (FOLDER / f"{board.name}.json").write_text(render(board))
