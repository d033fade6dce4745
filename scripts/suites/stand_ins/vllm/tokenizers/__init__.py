"""A stand-in for vLLM's tokenizers: under any name it gives the tokenizer of the model on the
test's server."""

from typing import Any

from served_node import model_folder
from transformers import AutoTokenizer


class Served:
    """The model folder of the last started server."""

    model = "embedded"


def get_tokenizer(tokenizer_name: str, **_settings: Any) -> Any:
    """Return transformers' tokenizer of the served model."""
    return AutoTokenizer.from_pretrained(model_folder(Served.model))
