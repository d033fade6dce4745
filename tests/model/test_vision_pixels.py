"""Pixels to patches: golden pixels, Pillow's bits, transformers' sizes, naive patch order."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from tasuki.model.vision.grid import PictureError
from tasuki.model.vision.pixels import image_patches, normalised, patches_of
from tasuki.model.vision.processor import ClipRules, PixelRules, Size
from tasuki.model.vision.resample import resample, rows_first
from tests.harness.clip_frames import clip_patches
from tests.harness.picture_goldens import GoldenItem, PictureModel, golden_cases, needs_goldens
from tests.model.vision_twin import patch_places

PUBLISHED = PixelRules(16, 2, 2, 65536, 16777216, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
SMALL = PixelRules(3, 2, 2, 36, 3600, (0.5, 0.25, 0.75), (0.5, 0.25, 0.125))
CLIP = ClipRules(16384, 1310720, 2.0, 4, 768, None)


def noise(height: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)


def resized_frames(model: PictureModel, item: GoldenItem) -> Tensor:
    frames = item.frames()
    size = Size(*frames[0].shape[:2])
    if item.values["kind"] == "image":
        wanted = model.rules.size(size)
    else:
        wanted = model.clip.size(len(frames), size, model.rules)
    assert [wanted.height, wanted.width] == item.values["size"]
    return torch.stack([resample(frame, wanted.height, wanted.width) for frame in frames])


@needs_goldens
@pytest.mark.parametrize(("model_name", "case_name"), golden_cases())
def test_resized_pixels_equal_the_golden_ones(model_name: str, case_name: str) -> None:
    model = PictureModel.load(model_name)
    for item in model.case(case_name).items:
        pixels = resized_frames(model, item).numpy().tobytes()
        assert hashlib.sha256(pixels).hexdigest() == item.values["pixels_sha256"]


@needs_goldens
@pytest.mark.parametrize(("model_name", "case_name"), golden_cases())
def test_grids_equal_the_golden_ones(model_name: str, case_name: str) -> None:
    model = PictureModel.load(model_name)
    for item in model.case(case_name).items:
        pictures = model.patches(item)
        grid = pictures[0].grid
        assert [len(pictures), grid.rows, grid.columns] == item.values["grid_thw"]
        assert all(picture.grid == grid for picture in pictures)
        assert sum(picture.grid.tokens for picture in pictures) == len(item.rows)


@needs_goldens
def test_resampling_by_torch_gives_rows_near_the_golden_ones() -> None:
    """torchvision's processors resample with PyTorch, whose weights have fewer bits."""
    model = PictureModel.load("vision-dense")
    for item in model.case("odd").items:
        frame = item.frames()[0]
        planes = frame.permute(2, 0, 1)[None]
        found = functional.interpolate(
            planes, tuple(item.values["size"]), mode="bicubic", antialias=True
        )
        patches = patches_of([found[0].permute(1, 2, 0)] * 2, model.rules)
        difference = float((model.tower.rows(patches) - item.rows).abs().max())
        assert difference <= model.tolerance["other_resize_embeds_abs"]


sides = st.integers(1, 90)


@settings(max_examples=150)
@given(height=sides, width=sides, new_height=sides, new_width=sides, seed=st.integers(0, 2**31))
def test_resampling_equals_pillow(
    height: int, width: int, new_height: int, new_width: int, seed: int
) -> None:
    from PIL import Image

    image = noise(height, width, seed)
    wanted = Image.fromarray(image.numpy()).resize(
        (new_width, new_height), Image.Resampling.BICUBIC
    )
    found = resample(image, new_height, new_width)
    assert np.array_equal(found.numpy(), np.asarray(wanted))


@pytest.mark.parametrize(
    ("height", "width", "new_height", "new_width"),
    [(3000, 7, 40, 6), (7, 3000, 6, 40), (1080, 1920, 1088, 1920), (2000, 5, 1984, 32)],
)
def test_resampling_of_long_pictures_equals_pillow(
    height: int, width: int, new_height: int, new_width: int
) -> None:
    from PIL import Image

    image = noise(height, width)
    wanted = Image.fromarray(image.numpy()).resize((new_width, new_height), 3)
    assert np.array_equal(resample(image, new_height, new_width).numpy(), np.asarray(wanted))


def test_the_axis_that_shrinks_more_is_resampled_first() -> None:
    assert rows_first(260, 33, 256, 32)
    assert not rows_first(260, 33, 258, 32)
    assert not rows_first(33, 260, 32, 256)
    assert not rows_first(20, 40, 30, 20)


def test_a_flat_image_stays_flat() -> None:
    for level in (0, 1, 127, 254, 255):
        image = torch.full((37, 53, 3), level, dtype=torch.uint8)
        assert bool((resample(image, 64, 32) == level).all())


@pytest.mark.parametrize(
    ("height", "width", "new_height", "new_width"),
    [
        (1080, 1920, 1088, 1920),
        (2160, 3840, 2176, 3840),
        (4000, 6000, 3328, 4992),
        (100, 100, 256, 256),
        (1, 200, 32, 3648),
        (48, 80, 224, 352),
        (272, 336, 256, 320),
        (240, 304, 256, 320),
        (5, 7, 224, 320),
        (30000, 151, 30016, 160),
        (8192, 8192, 4096, 4096),
    ],
)
def test_sizes_equal_those_of_transformers(
    height: int, width: int, new_height: int, new_width: int
) -> None:
    """Computed by smart_resize of transformers 5.24 with the published limits."""
    assert PUBLISHED.size(Size(height, width)) == Size(new_height, new_width)
    grid = PUBLISHED.grid(Size(height, width))
    assert (grid.rows * 16, grid.columns * 16) == (new_height, new_width)


@pytest.mark.parametrize(
    ("frames", "height", "width", "new_height", "new_width"),
    [
        (5, 96, 64, 96, 64),
        (8, 480, 640, 320, 448),
        (64, 1080, 1920, 96, 160),
        (2, 10, 20, 64, 128),
        (3, 20, 45, 64, 128),
        (700, 1080, 1920, 32, 32),
    ],
)
def test_sizes_of_clips_equal_those_of_transformers(
    frames: int, height: int, width: int, new_height: int, new_width: int
) -> None:
    """Computed by the video processor's smart_resize of transformers 5.24."""
    assert CLIP.size(frames, Size(height, width), PUBLISHED) == Size(new_height, new_width)


def test_a_limit_of_one_frame_shrinks_a_short_clip() -> None:
    capped = ClipRules(16384, 25165824, 2.0, 4, 768, 64)
    assert capped.size(4, Size(1080, 1920), PUBLISHED) == Size(192, 320)
    free = ClipRules(16384, 25165824, 2.0, 4, 768, None)
    assert free.size(4, Size(1080, 1920), PUBLISHED) == Size(1088, 1920)


@pytest.mark.parametrize("size", [Size(1, 201), Size(4021, 20), Size(0, 5)])
def test_long_pictures_are_refused(size: Size) -> None:
    with pytest.raises(PictureError, match="200 times as long as wide"):
        PUBLISHED.size(size)


@settings(max_examples=200)
@given(height=st.integers(1, 9000), width=st.integers(1, 9000), limit=st.integers(1, 10**7))
def test_a_lower_limit_bounds_the_tokens(height: int, width: int, limit: int) -> None:
    if max(height, width) > 200 * min(height, width):
        return
    rules = PUBLISHED.limited(limit)
    size = rules.size(Size(height, width))
    assert size.height % 32 == size.width % 32 == 0
    assert rules.most == max(min(limit, PUBLISHED.most), 1024)
    # Growth to the least pixels rounds up, a column or a row of tokens.
    assert size.pixels <= max(rules.most, rules.least + 32 * (size.height + size.width))


def test_patches_have_colour_frame_row_column_order() -> None:
    frames = [noise(12, 18, seed) for seed in (1, 2)]
    picture = patches_of(frames, SMALL)
    places = patch_places(picture.grid)
    assert picture.levels.shape == (24, 54)
    for at, (row, column) in enumerate(places):
        wanted = [
            int(frame[3 * row + y, 3 * column + x, colour])
            for colour in range(3)
            for frame in frames
            for y in range(3)
            for x in range(3)
        ]
        assert picture.levels[at].tolist() == wanted


def test_an_image_is_doubled_to_two_frames() -> None:
    picture = image_patches(noise(12, 18), SMALL)
    both = picture.levels.view(-1, 3, 2, 9)
    assert torch.equal(both[:, :, 0], both[:, :, 1])


def test_the_last_frame_of_an_odd_clip_is_doubled() -> None:
    clip = ClipRules(36, 10**6, 2.0, 4, 768, None)
    frames = [noise(12, 18, seed) for seed in range(3)]
    first, last = clip_patches(frames, SMALL, clip)
    assert torch.equal(first.levels, patches_of(frames[:2], SMALL).levels)
    assert torch.equal(last.levels, patches_of([frames[2]] * 2, SMALL).levels)
    (single,) = clip_patches(frames[:1], SMALL, clip)
    assert torch.equal(single.levels, patches_of([frames[0]] * 2, SMALL).levels)


def test_levels_are_normalised_by_colour() -> None:
    picture = image_patches(noise(12, 18), SMALL)
    found = normalised(picture.levels, SMALL).view(-1, 3, 18)
    levels = picture.levels.view(-1, 3, 18).float()
    mean = torch.tensor(SMALL.mean)[:, None]
    deviation = torch.tensor(SMALL.deviation)[:, None]
    assert found.dtype == torch.float32
    assert torch.allclose(found, (levels / 255 - mean) / deviation, atol=1e-6)


@pytest.mark.parametrize(
    "image",
    [
        torch.zeros(8, 8, 4, dtype=torch.uint8),
        torch.zeros(8, 8, 3),
        torch.zeros(3, 8, 8, dtype=torch.uint8),
        torch.zeros(8, 8, dtype=torch.uint8),
        torch.zeros(0, 8, 3, dtype=torch.uint8),
    ],
)
def test_images_of_another_form_are_refused(image: Tensor) -> None:
    with pytest.raises(PictureError, match=r"is not RGB; give \[height, width, 3\] uint8"):
        image_patches(image, PUBLISHED)


def test_clips_of_another_form_are_refused() -> None:
    with pytest.raises(PictureError, match="a clip has no frames"):
        clip_patches([], PUBLISHED, CLIP)
    with pytest.raises(PictureError, match="frames of one size"):
        clip_patches([noise(8, 9), noise(9, 8)], PUBLISHED, CLIP)
