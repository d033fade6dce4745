"""A published tower on a GPU: its time, the parts of its encodes, its memory, its pixels."""

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tasuki.engine import messages as m
from tasuki.engine.pictures.file_levels import DeviceBytes, FileLevels
from tasuki.engine.pictures.placed import PlacedPicture
from tasuki.engine.pictures.row_store import RowStore
from tasuki.engine.pictures.tower_pace import DevicePace, EncodePart
from tasuki.engine.scheduling.picture_encoder import PictureEncoder, _MissingPicture, _Waiting
from tasuki.model.families.qwen3_5.published import published_tower
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


def test_attention_beside_its_other_implementations() -> None:
    """Only printed: milliseconds a block of the tower's own kernel, and of torch's."""
    # Where no GPU is, tests of kernels must be the first to import Triton.
    from tasuki.model.ops.attention.picture_attention import picture_attention

    heads, dim = config_of_9b().heads, config_of_9b().head_dim
    for patches in (8160, 1024, 15624):
        qkv = torch.randn(patches, 3, heads, dim, dtype=torch.bfloat16, device="cuda")
        q, k, v = (each.transpose(0, 1)[None] for each in qkv.unbind(1))
        times = {"own": best_ms(lambda qkv=qkv: picture_attention(qkv))}
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            with sdpa_kernel([backend]):
                times[backend.name] = best_ms(
                    lambda q=q, k=k, v=v: functional.scaled_dot_product_attention(q, k, v)
                )
        flops = 4 * patches**2 * heads * dim
        for name, ms in times.items():
            print(f"{name} of {patches}: {ms:.2f} ms, {flops / ms / 1e9:.0f} TFLOP/s")


def best_ms(call: Callable[[], object]) -> float:
    """Return the least milliseconds of a call, of five behind a first one."""
    times = []
    for _ in range(6):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        call()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended))
    return min(times[1:])


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

    caller = ""
    created = 0.0

    def __init__(self) -> None:
        self.seen: dict[int, object] = {}


def encoder_of(tower: VisionTower) -> PictureEncoder:
    store = RowStore(512 * 2**20, tower.config.out_hidden * 2)
    return PictureEncoder(tower, store)


@pytest.mark.parametrize("grid", [FULL_HD, LARGEST], ids=["1080p", "4M"])
def test_parts_beside_answers_are_short(
    tower: VisionTower, grid: PictureGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 8 ms run meanwhile. From the second part on each is within its time."""
    encoder = encoder_of(tower)
    parts: list[EncodePart] = []
    end = DevicePace.end

    def noted(self: DevicePace) -> EncodePart:
        parts.append(end(self))
        return parts[-1]

    monkeypatch.setattr(DevicePace, "end", noted)
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
        seconds = [part.seconds for part in parts]
        shown = ", ".join(f"{1000 * each:.1f}" for each in seconds)
        print(
            f"picture {number}: parts of {shown} ms in {steps} steps; the host took at most "
            f"{1000 * max(host):.1f} ms"
        )
        # The first part of a picture also copies its levels.
        if number:
            assert max(seconds[1:]) < 0.02
        parts.clear()
    assert encoder.counts.encoded == 3


def wish(encoder: PictureEncoder, name: object, picture: PlacedPicture) -> None:
    """Make a request wait for the picture."""
    request = Asking()
    missing = _MissingPicture(picture, {request: _Waiting(0, 0.0)})  # type: ignore[dict-item]
    encoder._wishes[name] = missing  # type: ignore[index]
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
        files._patches([files._resized(image, target)])
        began = time.perf_counter()
        found = files._patches([files._resized(image, target)])
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
    file = m.PictureFile(m.Media(content), m.FileCoding.PLAIN, 200, 300, "here")
    picture = PlacedPicture(run, grid, digest("f", 1, 1), None, file)
    found = []
    for device in ("cuda", "cpu"):
        files = FileLevels(RULES, device=torch.device(device))
        try:
            reading = files.begin("", picture)
            assert reading is not None
            found.append(reading.result(60).levels.cpu())
        finally:
            files.close()
    assert torch.equal(*found)
