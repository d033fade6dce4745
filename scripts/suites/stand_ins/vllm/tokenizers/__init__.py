"""The tokenizer of the model that a test's server has, whatever the test calls it."""

from typing import Any

from served_node import model_folder
from transformers import AutoTokenizer


class Served:
    """The model of the server that was started last."""

    model = "embedded"


def get_tokenizer(tokenizer_name: str, **_settings: Any) -> Any:
    """Return transformers' tokenizer of the served model."""
    return AutoTokenizer.from_pretrained(model_folder(Served.model))
