"""A checkpoint's vision: the tower's shape and the processor's rules, without the tower's weights.

A decode node without a tower reads, measures and places pictures by it. Another node computes their
rows. Nodes compare its text before they exchange prompts with pictures.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.picture_file import decoder_version
from tasuki.model.vision.processor import PixelRules
from tasuki.pycache.keys import SCHEME


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
