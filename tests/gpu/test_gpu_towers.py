"""A published tower on a GPU: its time, the parts of its encodes, its memory, its pixels."""

import math
import time

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tasuki.engine import messages as m
from tasuki.engine.pictures.file_levels import DeviceBytes, FileLevels
from tasuki.engine.pictures.placed import PlacedPicture
from tasuki.engine.pictures.row_store import RowStore
from tasuki.engine.pictures.tower_pace import EncodePart
from tasuki.engine.scheduling.picture_encoder import PictureEncoder, _Wish
from tasuki.model.known_models import published_tower
from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.costs import EncodeFlops, TowerBytes
from tasuki.model.vision.grid import PictureGrid
from tasuki.model.vision.pixels import PicturePatches, patches_of
from tasuki.model.vision.processor import MOST_SHOWN_PIXELS, PixelRules, Size
from tasuki.model.vision.prompt_positions import PictureRun
from tasuki.model.vision.resample import resample
from tasuki.model.vision.tower import VisionTower
from tasuki.model.vision.weights import assemble_tower
from tests.harness.tiny_pictures import RandomTensors, digest

RULES = PixelRules(16, 2, 2, 65536, 16777216, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
FULL_HD = PictureGrid(68, 120, 2)
LARGEST = PictureGrid(124, 126, 2)
"""Almost 4 million pixels."""


@pytest.fixture(scope="module")
def tower() -> VisionTower:
    config = config_of_9b()
    weights = assemble_tower(config, RandomTensors(), torch.bfloat16, "cuda")
    return VisionTower(config, weights, RULES)


def config_of_9b() -> VisionConfig:
    found = published_tower("9b")
    assert found is not None
    return found


def patches_in(grid: PictureGrid, seed: int = 0) -> PicturePatches:
    generator = torch.Generator().manual_seed(seed)
    shape = (grid.patches, config_of_9b().patch_values)
    return PicturePatches(
        torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator), grid
    )


@pytest.mark.parametrize("grid", [FULL_HD, LARGEST], ids=["1080p", "4M"])
def test_time_of_a_picture(tower: VisionTower, grid: PictureGrid) -> None:
    patches = patches_in(grid)
    on_device = PicturePatches(patches.levels.cuda(), grid)
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        began = torch.cuda.Event(enable_timing=True)
        ended = torch.cuda.Event(enable_timing=True)
        began.record()
        launched = time.perf_counter()
        rows = tower.rows(on_device)
        launched = time.perf_counter() - launched
        ended.record()
        torch.cuda.synchronize()
        best = min(best, began.elapsed_time(ended))
    flops = EncodeFlops.of(tower.config).picture(grid.patches)
    floor = flops / 550e9
    pixels = f"{grid.rows * 16} x {grid.columns * 16}"
    print(f"{pixels}: {best:.1f} ms on the device, {1000 * launched:.1f} ms to launch")
    print(
        f"{flops / best / 1e9:.0f} TFLOP/s; {best / 1000 / floor:.2f} times {1000 * floor:.1f} ms"
    )
    assert rows.isfinite().all()
    assert best / 1000 < 4 * floor


def test_attention_of_each_implementation() -> None:
    """Only printed: which one the tower should take, and what a new size costs it."""
    heads, dim = config_of_9b().heads, config_of_9b().head_dim
    for tokens in (8160, 8192, 1024, 15624):
        heads_of_all = torch.randn(tokens, 3, heads, dim, dtype=torch.bfloat16, device="cuda")
        q, k, v = (each.transpose(0, 1)[None] for each in heads_of_all.unbind(1))
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            times = []
            with sdpa_kernel([backend]):
                for _ in range(4):
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                    functional.scaled_dot_product_attention(q, k, v)
                    torch.cuda.synchronize()
                    times.append(1000 * (time.perf_counter() - began))
            flops = 4 * tokens**2 * heads * dim
            print(
                f"{backend.name} of {tokens}: first {times[0]:.1f} ms, then {min(times):.2f} ms, "
                f"{flops / min(times) / 1e9:.0f} TFLOP/s"
            )


def test_nothing_waits_for_the_device(tower: VisionTower) -> None:
    """A device busy for long delays no launch of an encode."""
    patches = patches_in(FULL_HD)
    tower.rows(patches)
    torch.cuda.synchronize()
    busy = torch.randn(8192, 8192, device="cuda")
    for _ in range(60):
        busy = (busy @ busy).clamp(-1, 1)
    ended = torch.cuda.Event()
    ended.record()
    rows = tower.rows(patches)
    assert not ended.query(), "launching waited for the device"
    assert rows.isfinite().all()


def test_workspace_is_counted(tower: VisionTower) -> None:
    patches = patches_in(LARGEST)
    tower.rows(patches)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    rows = tower.rows(patches)
    peak = torch.cuda.max_memory_allocated() - before
    size = TowerBytes.of(tower.config, torch.bfloat16)
    pixels = DeviceBytes.of(MOST_SHOWN_PIXELS * 6)
    counted = size.encode(LARGEST.patches) + pixels.total
    print(f"{peak / 2**20:.0f} MiB of {counted / 2**20:.0f} counted, {rows.nbytes} bytes of rows")
    assert peak < counted


class Asking:
    """A request that only waits for rows."""


def encoder_of(tower: VisionTower) -> PictureEncoder:
    store = RowStore(512 * 2**20, tower.config.out_hidden * 2)
    return PictureEncoder(tower, store)


@pytest.mark.parametrize("grid", [FULL_HD, LARGEST], ids=["1080p", "4M"])
def test_parts_beside_answers_are_short(
    tower: VisionTower, grid: PictureGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 8 ms run meanwhile. From the second part on each is within its time."""
    encoder = encoder_of(tower)
    seconds: list[float] = []
    ended = PictureEncoder._ended

    def noted(self: PictureEncoder, running: object, part: EncodePart) -> object:
        seconds.append(part.seconds)
        return ended(self, running, part)  # type: ignore[arg-type]

    monkeypatch.setattr(PictureEncoder, "_ended", noted)
    levels = patches_in(grid).levels.numpy()
    for number in range(3):
        name = (b"", digest(f"p{number}", grid.token_rows, grid.token_columns))
        run = PictureRun(1, grid.token_rows, grid.token_columns)
        wish(encoder, name, PlacedPicture(run, grid, name[1], levels))
        host: list[float] = []
        steps = 0
        while encoder._wishes:
            began = time.perf_counter()
            assert not encoder.advance(math.inf, in_flight=True)
            host.append(time.perf_counter() - began)
            torch.cuda._sleep(8_000_000)
            steps += 1
            torch.cuda.synchronize()
        parts = [f"{1000 * each:.1f}" for each in seconds]
        print(
            f"picture {number}: parts of {', '.join(parts)} ms in {steps} steps; the host took at"
            f" most {1000 * max(host):.1f} ms"
        )
        if number:
            assert max(seconds) < 0.02
        seconds.clear()
    assert encoder.counts.encoded == 3


def wish(encoder: PictureEncoder, name: object, picture: PlacedPicture) -> None:
    """Make a request wait for the picture."""
    request = Asking()
    encoder._wishes[name] = _Wish(picture, {request: 0})  # type: ignore[index, dict-item]
    encoder._held[request] = {}  # type: ignore[index]
    encoder._unpin_passed = lambda: None  # type: ignore[method-assign]


@pytest.mark.parametrize("size", [(1080, 1920), (300, 200), (2300, 2400), (4000, 3200)])
def test_pixels_are_the_cpus(size: tuple[int, int]) -> None:
    """Resampling is integer arithmetic: equal to the last bit. The largest is resized on the
    host."""
    pytest.importorskip("PIL")
    pixels = np.random.default_rng(3).integers(0, 256, (*size, 3)).astype(np.uint8)
    target = RULES.limited(MOST_SHOWN_PIXELS).size(Size(*size))
    image = torch.from_numpy(pixels)
    resized = resample(image, target.height, target.width)
    expected = patches_of([resized] * 2, RULES).levels
    files = FileLevels(RULES, device=torch.device("cuda"))
    try:
        files._patches(image, target)
        began = time.perf_counter()
        found = files._patches(image, target)
        print(f"{size}: {1000 * (time.perf_counter() - began):.1f} ms to patches of {target}")
    finally:
        files.close()
    assert found.is_cuda == (image.nbytes <= 32 * 2**20)
    assert torch.equal(found.cpu(), expected)


def test_a_file_gives_patches_on_the_device() -> None:
    pytest.importorskip("PIL")
    from tests.harness.picture_files import picture_file

    content = picture_file(300, 200)
    target = RULES.size(Size(200, 300))
    grid = PictureGrid(target.height // 16, target.width // 16, 2)
    run = PictureRun(1, grid.token_rows, grid.token_columns)
    file = m.PictureFile(content, m.FileCoding.PLAIN, 200, 300, "here")
    picture = PlacedPicture(run, grid, digest("f", 1, 1), None, file)
    found = []
    for device in ("cuda", "cpu"):
        files = FileLevels(RULES, device=torch.device(device))
        try:
            reading = files.begin("", picture)
            assert reading is not None
            found.append(reading.result(60).cpu())
        finally:
            files.close()
    assert torch.equal(*found)
