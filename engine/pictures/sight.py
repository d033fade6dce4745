"""A checkpoint's vision: the tower's shape and the processor's rules, without the tower's weights.

A decode node without a tower reads, measures and places pictures by it. Another node computes their
rows. Nodes compare its text before they exchange prompts with pictures.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.picture_file import decoder_version
from tasuki.model.vision.processor import PixelRules
from tasuki.model.vision.weights import has_tower
from tasuki.pycache.keys import SCHEME

log = logging.getLogger(__name__)

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True)
class Sight:
    """config: the tower's shape and token ids. rules: the processor's, for sizes and pixels."""

    config: VisionConfig
    rules: PixelRules

    def contract(self, weights_digest: str) -> Mapping[str, str]:
        """Return the fields with equal values on two nodes that exchange prompts with pictures.
        weights_digest: of the checkpoint's files, the tower's included."""
        return {
            "tower_digest": weights_digest,
            "tower_constants": self.config.constants,
            "tower_tokens": str(self.config.tokens),
            "picture_constants": self.rules.constants,
            "key_scheme": SCHEME.decode(),
            "pillow": decoder_version(),
        }


def load_sight(folder: Path) -> Sight | None:
    """Return the checkpoint's vision; None without a tower or a processor's file. Raises
    ModelConfigError, WeightsError."""
    vision = VisionConfig.load(folder)
    if vision is None or not has_tower(folder):
        return None
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        log.warning("%s has a vision tower but no processor's file: text only", folder)
        return None
    return Sight(vision, PixelRules.load(folder, vision))
