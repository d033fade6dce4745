"""What config.json says of a draft layer that its tensors may not show: several, of which a shard
is missing, or an embedding of its own."""

import json
from pathlib import Path

from .config_fields import ConfigFields

_OFF = "one layer over the model's own embedding is served; give --draft-layer off"


def check_draft_layer_config(directory: Path) -> None:
    """Of a folder that holds tensors of such a layer. Raises ModelConfigError."""
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        # Whoever reads the shape says so.
        return
    outer = ConfigFields(raw if isinstance(raw, dict) else {}, str(path))
    for fields in (outer, outer.object("text_config")):
        if fields is None:
            continue
        count = fields.get("mtp_num_hidden_layers")
        # A config of 0 is that of a library which reads no such layer: its tensors decide.
        if count not in (None, 0, 1):
            raise fields.error("mtp_num_hidden_layers", f"is {count!r:.40}", _OFF)
        if fields.flag("mtp_use_dedicated_embeddings", False):
            raise fields.error("mtp_use_dedicated_embeddings", "is true", _OFF)
