"""FLOPs of prompts with pictures of one size, and the number of their tokens. Pure."""

from dataclasses import dataclass

from tasuki.model.config import ModelConfig
from tasuki.model.costs import PrefillFlops
from tasuki.model.families.registry import family_of
from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.costs import EncodeFlops
from tasuki.model.vision.grid import PictureGrid
from tasuki.model.vision.processor import PixelRules, Size


@dataclass(frozen=True)
class PromptCosts:
    """prefill: FLOPs of the language model. encode: FLOPs of the tower. grid: of each picture."""

    prefill: PrefillFlops
    encode: EncodeFlops
    grid: PictureGrid

    @staticmethod
    def of(
        model: ModelConfig, vision: VisionConfig, rules: PixelRules, size: Size
    ) -> "PromptCosts":
        """size: of each picture, in pixels. Raises PictureError."""
        return PromptCosts(
            family_of(model).prefill_flops(model), EncodeFlops.of(vision), rules.grid(size)
        )

    def flops(self, tokens: int, pictures: int) -> float:
        """Return the FLOPs of a prompt of `tokens` tokens whose pictures are encoded."""
        return self.prefill.of(tokens) + pictures * self.encode.picture(self.grid.patches)
