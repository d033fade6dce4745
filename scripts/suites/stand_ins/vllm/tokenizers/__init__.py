"""The tokenizer of the model on a test's server, under any name."""

from typing import Any

from served_node import model_folder
from transformers import AutoTokenizer


class Served:
    """The model of the last started server."""

    model = "embedded"


def get_tokenizer(tokenizer_name: str, **_settings: Any) -> Any:
    """Return transformers' tokenizer of the served model."""
    return AutoTokenizer.from_pretrained(model_folder(Served.model))
