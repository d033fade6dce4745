"""The shapes a trace can be replayed for, by name."""

from tasuki.model.config import ModelConfig, ModelConfigError
from tasuki.model.known_models import PUBLISHED, published_or_folder

from .errors import ReplayError

__all__ = ["PUBLISHED", "load_model"]


def load_model(name: str) -> ModelConfig:
    """A published shape by name, else a checkpoint folder's. Raises ReplayError."""
    try:
        return published_or_folder(name)
    except ModelConfigError as error:
        raise ReplayError(str(error)) from error
