"""The vision tower: golden rows, its naive reference, cuts by blocks, weights by name, costs."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tasuki.model.vision.config import PictureTokens, VisionConfig
from tasuki.model.vision.costs import EncodeFlops, TowerBytes, rows_bytes
from tasuki.model.vision.grid import PictureError, PictureGrid, PositionTaps
from tasuki.model.vision.pixels import PicturePatches, normalised
from tasuki.model.vision.processor import PixelRules
from tasuki.model.vision.tower import MLP_ROWS, VisionTower
from tasuki.model.vision.weights import TowerFiles, assemble_tower, has_tower, load_tower_weights
from tasuki.model.weights.matrix import WHOLE, Part, WeightsError
from tasuki.model.weights.source import PlainSource
from tests.harness.goldens import BESIDE
from tests.harness.picture_goldens import NAMES, PictureModel, golden_cases, needs_goldens
from tests.model.vision_twin import patch_places, reference_rows

TOKENS = PictureTokens(start=5, end=6, image=7, video=8)
SMALL = VisionConfig(
    depth=3,
    hidden=24,
    heads=2,
    intermediate=33,
    out_hidden=20,
    patch=2,
    frames=2,
    merge=2,
    side=5,
    rope_theta=10000.0,
    norm_eps=1e-6,
    rotary_sections=(2, 1, 1),
    tokens=TOKENS,
)
RULES = PixelRules(2, 2, 2, 16, 4096, (0.5, 0.4, 0.3), (0.5, 0.6, 0.7))
PUBLISHED = {
    "0.8b": (12, 768, 12, 3072, 1024),
    "4b": (24, 1024, 16, 4096, 2560),
    "9b": (27, 1152, 16, 4304, 4096),
    "27b": (27, 1152, 16, 4304, 5120),
}


class KeptTensors(PlainSource):
    """A source of random tensors, kept by published name."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def has(self, name: str) -> bool:
        return True

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        assert name not in self.kept
        generator = torch.Generator().manual_seed(len(self.kept))
        noise = torch.randn(shape, generator=generator)
        self.kept[name] = noise / shape[-1] ** 0.5 if len(shape) > 1 else 1 + 0.2 * noise
        return self.kept[name].to(dtype)[part]


def published(size: str) -> VisionConfig:
    depth, hidden, heads, intermediate, out = PUBLISHED[size]
    return replace(
        SMALL,
        depth=depth,
        hidden=hidden,
        heads=heads,
        intermediate=intermediate,
        out_hidden=out,
        patch=16,
        side=48,
    )


def random_tower(config: VisionConfig = SMALL) -> tuple[VisionTower, dict[str, Tensor]]:
    source = KeptTensors()
    return VisionTower(config, assemble_tower(config, source, torch.float32), RULES), source.kept


def random_patches(grid: PictureGrid, seed: int = 0) -> PicturePatches:
    generator = torch.Generator().manual_seed(seed)
    shape = (grid.patches, SMALL.patch_values)
    return PicturePatches(
        torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator), grid
    )


@needs_goldens
@pytest.mark.parametrize(("model_name", "case_name"), golden_cases())
def test_rows_equal_the_golden_ones(model_name: str, case_name: str) -> None:
    model = PictureModel.load(model_name)
    for item in model.case(case_name).items:
        rows = torch.cat([model.tower.rows(picture) for picture in model.patches(item)])
        assert rows.shape == item.rows.shape
        assert float((rows - item.rows).abs().max()) <= 2e-5 < model.tolerance["fp32_embeds_abs"]


@needs_goldens
@pytest.mark.parametrize("model_name", NAMES)
def test_reference_equals_the_golden_rows(model_name: str) -> None:
    model = PictureModel.load(model_name)
    stored = load_file(model.folder / "model.safetensors")
    tensors = {name.removeprefix("model.visual."): tensor for name, tensor in stored.items()}
    (item,) = model.case("middle").items
    (picture,) = model.patches(item)
    values = normalised(picture.levels, model.rules)
    rows = reference_rows(values, picture.grid, tensors, model.config)
    assert float((rows - item.rows).abs().max()) <= 2e-5


@pytest.mark.parametrize("shape", [(2, 2), (2, 8), (10, 2), (6, 4)])
def test_tower_equals_its_reference(shape: tuple[int, int]) -> None:
    tower, tensors = random_tower()
    patches = random_patches(PictureGrid(*shape, merge=2))
    wanted = reference_rows(normalised(patches.levels, RULES), patches.grid, tensors, SMALL)
    rows = tower.rows(patches)
    assert rows.shape == (patches.grid.tokens, SMALL.out_hidden)
    assert float((rows - wanted).abs().max()) < 2e-5


def test_tower_in_bf16_is_near_its_reference() -> None:
    source = KeptTensors()
    tower = VisionTower(SMALL, assemble_tower(SMALL, source, torch.bfloat16), RULES)
    patches = random_patches(PictureGrid(6, 4, 2))
    wanted = reference_rows(normalised(patches.levels, RULES), patches.grid, source.kept, SMALL)
    rows = tower.rows(patches)
    assert rows.dtype == torch.bfloat16
    assert float((rows.float() - wanted).abs().mean()) < 0.02 * float(wanted.abs().mean()) + 0.02


@pytest.mark.parametrize("cut", [(1, 1, 1), (2, 1), (1, 2), (0, 3), (2, 9)])
def test_rows_keep_their_bits_however_blocks_are_cut(cut: tuple[int, ...]) -> None:
    tower, _ = random_tower()
    patches, other = (random_patches(PictureGrid(6, 4, 2), seed) for seed in (0, 1))
    whole = tower.rows(patches)
    encode, beside = tower.begin(patches), tower.begin(other)
    for blocks in cut:
        encode.run(blocks)
        beside.run(1)
    assert encode.blocks_left == 0
    assert torch.equal(encode.rows(), whole)


def test_a_large_mlp_is_computed_in_parts() -> None:
    tower, _ = random_tower(replace(SMALL, depth=1))
    grid = PictureGrid(4, (MLP_ROWS + 400) // 4, 2)
    hidden = tower.rows(random_patches(grid))
    assert hidden.shape == (grid.tokens, SMALL.out_hidden) and bool(hidden.isfinite().all())


def test_an_unfinished_encode_has_no_rows() -> None:
    tower, _ = random_tower()
    encode = tower.begin(random_patches(PictureGrid(2, 2, 2)))
    encode.run(2)
    with pytest.raises(RuntimeError, match="1 blocks of the picture have not run"):
        encode.rows()


def test_patches_of_another_processor_are_refused() -> None:
    tower, _ = random_tower()
    grid = PictureGrid(2, 2, 2)
    wide = PicturePatches(torch.zeros(4, SMALL.patch_values + 1, dtype=torch.uint8), grid)
    with pytest.raises(PictureError, match="do not fit a tower"):
        tower.begin(wide)
    merged = PicturePatches(
        torch.zeros(9, SMALL.patch_values, dtype=torch.uint8), PictureGrid(3, 3, 3)
    )
    with pytest.raises(PictureError, match="merged by 3"):
        tower.begin(merged)
    with pytest.raises(PictureError, match="not whole in squares of 2"):
        PictureGrid(3, 2, 2)


@pytest.mark.parametrize("shape", [(2, 2, 2), (4, 6, 2), (9, 3, 3), (5, 4, 1)])
def test_patch_order_is_square_by_square(shape: tuple[int, int, int]) -> None:
    grid = PictureGrid(*shape)
    rows, columns = grid.places()
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == patch_places(grid)


def test_learned_positions_align_with_the_corners() -> None:
    table = torch.arange(25.0)[:, None]
    grid = PictureGrid(1, 9, 1)
    assert PositionTaps.of(grid, 5).rows(table)[:, 0].tolist() == [i / 2 for i in range(9)]
    grown = PositionTaps.of(PictureGrid(9, 9, 1), 5).rows(table)[:, 0].view(9, 9)
    assert torch.equal(grown[::2, ::2], table.view(5, 5))
    assert float(PositionTaps.of(PictureGrid(1, 1, 1), 5).rows(table)) == 0


def write_folder(folder: Path, tensors: dict[str, Tensor], prefix: str = "model.visual.") -> Path:
    stored = {prefix + name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(stored, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("prefix", ["model.visual.", "visual."])
def test_weights_are_found_under_either_prefix(tmp_path: Path, prefix: str) -> None:
    tower, tensors = random_tower()
    folder = write_folder(tmp_path, tensors, prefix)
    assert has_tower(folder)
    loaded = VisionTower(SMALL, load_tower_weights(folder, SMALL, torch.float32), RULES)
    patches = random_patches(PictureGrid(4, 2, 2))
    assert torch.equal(loaded.rows(patches), tower.rows(patches))
    assert loaded.weights.nbytes == sum(tensor.nbytes for tensor in tensors.values())


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("blocks.1.attn.qkv.bias", None, r"blocks\.1\.attn\.qkv\.bias is missing"),
        ("patch_embed.proj.weight", None, "the checkpoint has no vision tower"),
        ("merger.norm.weight", torch.ones(7), r"has shape \[7\], config.json asks for \[24\]"),
        ("blocks.0.norm1.bias", torch.zeros(24).to(torch.float8_e4m3fn), "is F8_E4M3; take"),
        ("deepstack_merger_list.0.norm.weight", torch.ones(3), "has no place in the tower"),
        ("blocks.3.norm1.weight", torch.ones(24), "has no place in the tower"),
    ],
)
def test_weights_of_another_shape_are_refused(
    tmp_path: Path, name: str, tensor: Tensor | None, message: str
) -> None:
    _, tensors = random_tower()
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    with pytest.raises(WeightsError, match=message):
        load_tower_weights(write_folder(tmp_path, tensors), SMALL, torch.float32)


def test_a_text_checkpoint_has_no_tower(tmp_path: Path) -> None:
    assert not has_tower(write_folder(tmp_path, {"layers.0.weight": torch.ones(2)}, "model."))
    with pytest.raises(WeightsError, match="serve text only"):
        TowerFiles(tmp_path)


@needs_goldens
@pytest.mark.parametrize("model_name", NAMES)
def test_every_tensor_of_a_published_tower_is_read(tmp_path: Path, model_name: str) -> None:
    config = VisionConfig.load(BESIDE / model_name)
    assert config is not None and has_tower(BESIDE / model_name)
    shutil.copy(BESIDE / model_name / "model.safetensors", tmp_path)
    source = TowerFiles(tmp_path)
    assemble_tower(config, source, torch.bfloat16)
    source.check_left_over()


@pytest.mark.parametrize(
    ("size", "millions", "tensors"), [("0.8b", 100.6, 153), ("4b", 333.5, 297), ("27b", 460.7, 333)]
)
def test_published_towers_have_their_sizes(size: str, millions: float, tensors: int) -> None:
    config = published(size)
    weights = TowerBytes.of(config, torch.bfloat16).weights
    assert weights / 2e6 == pytest.approx(millions, rel=1e-3)
    source = KeptTensors()
    assemble_tower(replace(config, hidden=16, heads=4, side=2), source, torch.float32)
    assert len(source.kept) == tensors


@pytest.mark.parametrize(
    ("pixels", "tera", "share"),
    [
        (512 * 512, 1.0, 0.13),
        (1024 * 1024, 5.6, 0.38),
        (1920 * 1088, 15.2, 0.55),
        (2048 * 2048, 47, 0.71),
        (4096 * 4096, 590, 0.91),
    ],
)
def test_flops_of_published_towers(pixels: int, tera: float, share: float) -> None:
    flops, patches = EncodeFlops.of(published("9b")), pixels // 256
    assert flops.picture(patches) / 1e12 == pytest.approx(tera, rel=0.04)
    attention = flops.depth * flops.quadratic * patches * patches
    assert attention / flops.picture(patches) == pytest.approx(share, abs=0.01)


def test_bytes_of_an_encode_grow_with_the_picture() -> None:
    size = TowerBytes.of(published("9b"), torch.bfloat16)
    assert 18_000 < size.per_patch < 20_000
    assert size.encode(16384) - size.encode(1024) == 15360 * size.per_patch
    assert rows_bytes(1024, published("9b"), torch.bfloat16) == 8 * 2**20
