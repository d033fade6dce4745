"""Bars as SVG, without a plotting library."""

from typing import Any

_SERIES = (
    ("sglang_like", "SGLang-like", "#b0b0b0"),
    ("marconi", "Marconi 0.5", "#7f8fa6"),
    ("lru", "lru", "#9ccc9c"),
    ("value", "value", "#4c9f70"),
    ("auto", "auto", "#1f6f4a"),
)
_WIDTH, _HEIGHT, _BASE = 760, 300, 240


def bars(rows: list[dict[str, Any]]) -> str:
    """One group of bars a cell: FLOPs saved, 0 to 1; a line marks the target."""
    cells: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = f"{row['trace'].split('.')[0].replace('_dev', '')} {row['gb']:g} GB"
        cell = cells.setdefault(name, dict(row["cell"]))
        cell[row["policy"]] = row["flops_saved"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="10">'
    ]
    for index, (_, label, colour) in enumerate(_SERIES):
        x = 20 + 110 * index
        parts.append(f'<rect x="{x}" y="8" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="17">{label}</text>')
    for group, (name, cell) in enumerate(cells.items()):
        left = 20 + group * (_WIDTH - 40) / max(len(cells), 1)
        for index, (key, _, colour) in enumerate(_SERIES):
            height = 200 * cell.get(key, 0.0)
            x = left + 22 * index
            parts.append(
                f'<rect x="{x:.0f}" y="{_BASE - height:.1f}" width="20" height="{height:.1f}" '
                f'fill="{colour}"/>'
            )
            parts.append(f'<text x="{x:.0f}" y="{_BASE - height - 3:.1f}">{cell[key]:.2f}</text>')
        y = _BASE - 200 * cell["target"]
        parts.append(
            f'<line x1="{left:.0f}" x2="{left + 110:.0f}" y1="{y:.1f}" y2="{y:.1f}" '
            'stroke="#c0392b"/>'
        )
        parts.append(f'<text x="{left:.0f}" y="{_BASE + 16}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])
