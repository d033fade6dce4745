"""Where the model lies that the package carries."""

import importlib.util
from pathlib import Path

from tasuki.utils.program import PACKAGE


class NoEmbeddedModel(RuntimeError):
    """This build carries no model."""


def embedded_model() -> Path:
    """The folder, in Hugging Face layout. Raises NoEmbeddedModel."""
    spec = importlib.util.find_spec(f"{PACKAGE}.model")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "embedded"
        if (folder / "config.json").exists():
            return folder
    raise NoEmbeddedModel("this build carries no model: give a checkpoint with --model DIR")
