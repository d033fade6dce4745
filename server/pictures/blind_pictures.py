"""Pictures of a node that sees none: each one is refused by its place, with the model and the fix.

BlindPictures stands in place of NodePictures, and BlindReader in place of PictureReader. So every
API refuses in the same words. Immutable; any thread.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tasuki.model.config_json import ModelConfigError
from tasuki.model.vision.config import VisionConfig
from tasuki.server.errors import PictureUnseen
from tasuki.server.text.rendering.chat_template import RenderedPrompt

from .fetching.request_addresses import RequestAddresses
from .part_reader import PictureReader
from .picture_counts import PictureCounter
from .sent_picture import PictureLimits, SentPicture

_LIMITS = PictureLimits()


class BlindPictures:
    sees = False

    def __init__(self, reason: str) -> None:
        """reason: names the model, and ends with the fix."""
        self._reason = reason
        self.counter = PictureCounter()

    @staticmethod
    def of(name: str, folder: Path) -> "BlindPictures":
        """Return the refusals of a node. name: the model's name for clients. folder: its
        checkpoint."""
        try:
            has_tower = VisionConfig.load(folder) is not None
        except ModelConfigError:
            # A node with this tower in use would not have started.
            has_tower = True
        if has_tower:
            return BlindPictures(
                f"this node serves {name} without its vision tower: send text, or ask a node that "
                "sees (GET /v1/models, capabilities.vision)"
            )
        return BlindPictures(
            f"{name} has no vision tower: send text, or serve a checkpoint with vision_config"
        )

    @property
    def limits(self) -> PictureLimits:
        return PictureLimits()

    def reader(
        self, before: Sequence[SentPicture] = (), addresses: RequestAddresses | None = None
    ) -> "BlindReader":
        """Return the reader of one request's pictures. before: those of its stored part."""
        return BlindReader(self._reason, before)

    def placed(
        self, rendered: RenderedPrompt, sent: Sequence[SentPicture], salt: bytes, most: int
    ) -> RenderedPrompt:
        """Return the prompt of text alone. Raises PictureUnseen for any picture."""
        if sent:
            _refuse(sent[0].place, self._reason)
        return rendered


class BlindReader(PictureReader):
    """Refuses each picture with PictureUnseen."""

    def __init__(self, reason: str, before: Sequence[SentPicture] = ()) -> None:
        super().__init__(_LIMITS, before)
        self._reason = reason

    def chat_part(self, part: Mapping[str, Any], place: str) -> NoReturn:
        _refuse(place, self._reason)

    def response_part(self, part: Mapping[str, Any], place: str) -> NoReturn:
        _refuse(place, self._reason)

    def message_block(self, block: Mapping[str, Any], place: str) -> NoReturn:
        _refuse(place, self._reason)

    def clip(self, part: Mapping[str, Any], place: str) -> NoReturn:
        _refuse(place, self._reason)

    def file(self, content: bytes, detail: str, place: str) -> NoReturn:
        _refuse(place, self._reason)

    def files(self, contents: Sequence[bytes], fps: float, place: str) -> NoReturn:
        _refuse(place, self._reason)


def _refuse(place: str, reason: str) -> NoReturn:
    raise PictureUnseen(place, f"is a picture, and {reason}")
