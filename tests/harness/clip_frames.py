"""A clip's frames as pictures, all at once. A node decodes and resizes them one by one."""

from collections.abc import Sequence

from torch import Tensor

from tasuki.model.vision.grid import PictureError
from tasuki.model.vision.pixels import PicturePatches, check_image, patches_of
from tasuki.model.vision.processor import ClipRules, PixelRules, Size
from tasuki.model.vision.resample import resample


def clip_patches(
    frames: Sequence[Tensor], rules: PixelRules, clip: ClipRules
) -> tuple[PicturePatches, ...]:
    """Resize a clip's sampled frames, and divide them into patches. Return one picture for each
    group of `rules.frames` frames. frames: [height, width, 3] uint8, of equal size. If the last
    group is not full, the last frame is repeated. Raises PictureError."""
    if not frames:
        raise PictureError("a clip has no frames; give one frame or more")
    for frame in frames:
        check_image(frame)
        if frame.shape != frames[0].shape:
            raise PictureError(
                f"frames of {list(frames[0].shape)} and {list(frame.shape)} are in one clip; give "
                "frames of one size"
            )
    height, width = frames[0].shape[:2]
    size = clip.size(len(frames), Size(height, width), rules)
    resized = [resample(frame, size.height, size.width) for frame in frames]
    resized += resized[-1:] * (-len(resized) % rules.frames)
    groups = range(0, len(resized), rules.frames)
    return tuple(patches_of(resized[at : at + rules.frames], rules) for at in groups)
