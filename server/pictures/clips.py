"""Video clips of requests as lists of frames: fps, times, pairs, URLs of frames.

A clip's frames are paired, and each pair is a picture of its own. Its time stands before it, as
trained. A list of frames needs no decoder of video, so files of video are refused by name.

Pure functions. A call costs no more than the clip's length. Errors name the place.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tasuki.server.errors import InvalidField

from .sent_picture import FramePair, SentPicture

CLIP_PARTS = ("video", "video_url")
"""Types of parts of clips."""
_FRAMES = 2
"""Frames of one picture."""
_MOST_FPS = 1000.0
_LEAST_FPS = 0.001
_FRAME_URLS = "data:video/jpeg;base64,"
"""Begin of a URL of frames in vLLM's form: JPEG files, separated by commas."""
FRAME_URL = "data:image/jpeg;base64,"
_NUMBERED = "add_vision_id"
"""Variable of templates: a number before each picture."""
_SEND = "send frames as a list of pictures, {type: video, video: [...], fps: 2}"


def read_fps(value: Any, place: str, usual: float) -> float:
    """Return the frames a second of a clip. usual: for null. Raises InvalidField."""
    if value is None:
        return usual
    if type(value) not in (int, float) or not _LEAST_FPS <= value <= _MOST_FPS:
        raise InvalidField(place, f"must be frames a second, {_LEAST_FPS:g} to {_MOST_FPS:g}")
    return float(value)


def listed_frames(part: Mapping[str, Any], place: str, most: int) -> tuple[str, list[Any]]:
    """Return the field and the frames of a clip's part, not read yet. most: allowed frames. Raises
    InvalidField for anything but a list."""
    value = part.get("video")
    if value is None:
        return f"{place}.video_url", _frame_urls(part.get("video_url"), f"{place}.video_url", most)
    at = f"{place}.video"
    if isinstance(value, str | dict):
        raise InvalidField(at, f"is a file of video, which is not decoded here: {_SEND}")
    if not isinstance(value, list) or not value:
        raise InvalidField(at, f"must be a list of pictures, one at least: {_SEND}")
    return at, value


def _frame_urls(value: Any, place: str, most: int) -> list[Any]:
    """Return the frames in one URL of vLLM's form."""
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        raise InvalidField(place, f"must be a URL: {_SEND}")
    if url[: len(_FRAME_URLS)].lower() != _FRAME_URLS:
        raise InvalidField(place, f"is a file of video, which is not decoded here: {_SEND}")
    # A further piece has all frames beyond the allowed ones; the count refuses it.
    frames = url[len(_FRAME_URLS) :].split(",", most)
    return [FRAME_URL + frame for frame in frames]


def paired(frames: Sequence[SentPicture]) -> list[SentPicture]:
    """Return the pictures of a clip: its frames in pairs, an odd last one twice."""
    found = []
    for index in range(0, len(frames), _FRAMES):
        second = frames[index + 1] if index + 1 < len(frames) else None
        pair = FramePair(second, index // _FRAMES, len(frames))
        found.append(replace(frames[index], pair=pair))
    return found


def pair_times(frames: int, fps: float) -> list[str]:
    """Return the text before each pair: the mean of its two times, as trained."""
    found = []
    for first in range(0, frames, _FRAMES):
        last = min(first + 1, frames - 1)
        seconds = (first / fps + last / fps) / _FRAMES
        assert math.isfinite(seconds)
        found.append(f"<{seconds:.1f} seconds>")
    return found


def check_numbering(variables: Mapping[str, Any], pictures: Sequence[SentPicture]) -> None:
    """Raise InvalidField if the template would number the pairs of a clip as pictures. variables:
    the template's."""
    if variables.get(_NUMBERED) and any(one.pair is not None for one in pictures):
        raise InvalidField(
            f"chat_template_kwargs.{_NUMBERED}",
            "cannot number pairs of frames: leave it out",
        )
