"""The JSON record of a training."""

import json
from typing import Any


def record_text(record: dict[str, Any]) -> str:
    """Indented, but a point of its `curve` a line."""
    curve = record["curve"]
    head = json.dumps({**record, "curve": []}, indent=1)
    points = ",\n".join(f"  {json.dumps(point)}" for point in curve)
    return head.replace('"curve": []', f'"curve": [\n{points}\n ]') + "\n"
