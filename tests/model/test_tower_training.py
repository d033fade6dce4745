"""What trains the embedded model's tower computes what is served, and never moves the trunk."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.forward import Batch, NullHooks, RowSpan, SequenceSlice
from tasuki.model.named_checkpoints import embedded_model
from tasuki.model.ops.norm.reference import rms_norm
from tasuki.model.vision.pixels import image_patches
from tasuki.model.vision.processor import Size as PixelSize
from tasuki.model.vision.prompt_positions import PictureRun, PromptLayout, rotary_axes
from tasuki.model.vision.tower import VisionTower
from tasuki.model.vision.weights import load_tower_weights
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.rendering.chat_template import ChatTemplate
from tasuki.server.text.tokenizer import Tokenizer
from tests.harness.goldens import Request, Workspace
from tests.harness.qwen35 import load_config, load_weights
from tools.embedded.tower.attempt import answer_logits, mean_loss
from tools.embedded.tower.dialogue import (
    IGNORED,
    Size,
    every_frame,
    one_frame,
    picture_tensor,
)
from tools.embedded.tower.drawn_scenes import Drawing, Scenes, draw, picture_shape
from tools.embedded.tower.frozen_trunk import FrozenTrunk, UnitLowerInverse
from tools.embedded.tower.kind_rows import KindRows
from tools.embedded.tower.prepare import SIDE, prepare
from tools.embedded.tower.scenes import (
    KINDS,
    Scene,
    exchanges,
    held_out_quarter,
    held_out_scene,
    training_scene,
)
from tools.embedded.tower.trained_tower import PREFIX, TrainedTower

TRUNK = "ab3a5c2842c901539df0dff44222e60c2e2b64e3bb75c4ce3b1480804fcbe0a9"
"""SHA-256 of the embedded model's model.safetensors, before it had a tower."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the embedded model's folder, prepared for a tower, with one before its training."""
    made = tmp_path_factory.mktemp("prepared")
    for name in ("generation_config.json", "model.safetensors"):
        (made / name).symlink_to(embedded_model() / name)
    prepare(embedded_model(), made)
    config, rules = picture_shape(made)
    torch.manual_seed(0)
    tower = TrainedTower(config, rules.grid(PixelSize(SIDE, SIDE)), 0.1)
    tensors = {PREFIX + name: t.bfloat16() for name, t in tower.state_dict().items()}
    save_file(tensors, made / "visual.safetensors", metadata={"format": "pt"})
    return made


@pytest.fixture(scope="module")
def trunk(folder: Path) -> FrozenTrunk:
    config, _ = picture_shape(folder)
    return FrozenTrunk.load(folder, "cpu", config.rotary_sections)


def few_scenes(folder: Path, count: int) -> Scenes:
    work = Drawing(folder, Size(2, 104, 20), part=count)
    with ThreadPoolExecutor(1) as pool:
        return draw(work, training_scene, count, 1, pool)


def test_the_trunk_has_the_bytes_it_had_before_the_tower() -> None:
    assert (
        hashlib.sha256((embedded_model() / "model.safetensors").read_bytes()).hexdigest() == TRUNK
    )


def test_the_tower_takes_at_most_400_kilobytes(folder: Path) -> None:
    assert (folder / "visual.safetensors").stat().st_size <= 400_000


def test_the_plain_trunk_computes_the_products_hidden_states_of_a_picture(
    folder: Path, trunk: FrozenTrunk
) -> None:
    config = load_config(folder)
    vision, rules = picture_shape(folder)
    backend = TorchBackend(config, axes=rotary_axes(vision.rotary_sections, config.rotary_dim // 2))
    weights = load_weights(folder, config, torch.float32)
    model = Qwen35Model(config, weights, backend)
    patches = image_patches(picture_tensor(training_scene(Random(3))), rules)
    tower = VisionTower(vision, load_tower_weights(folder, vision, torch.float32), rules)
    rows = tower.rows(patches).clone()
    run = PictureRun(9, patches.grid.token_rows, patches.grid.token_columns)
    tokens = torch.randint(2048, (80,), generator=torch.Generator().manual_seed(5)).tolist()
    layout = PromptLayout((run,))
    request = Request(Workspace(model), len(tokens))
    whole = layout.positions(0, len(tokens))
    item = SequenceSlice(
        tokens,
        0,
        request.pages,
        request.slots[0],
        None,
        rope_delta=layout.delta,
        rope_positions=torch.cat([whole[:, :1] - 1, whole], dim=1),
        pictures=(RowSpan(run.start, rows),),
    )
    expected = served_hidden(model, item, request)
    inputs = functional.embedding(torch.tensor(tokens), trunk.embedding)
    inputs[run.start : run.end] = rows
    found = trunk.hidden(inputs[None], whole[None])[0]
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    # The text alone, or with plain positions, is something else.
    plain = trunk.hidden(inputs[None], torch.arange(80).expand(1, 3, 80))[0]
    assert (plain - expected).abs().max() > 0.05


@torch.inference_mode()
def served_hidden(model: Qwen35Model, item: SequenceSlice, request: Request) -> Tensor:
    batch = Batch.pack([item])
    operators = model.backend.bind(batch)
    arena = request.workspace.arena
    branch, residual = model.layers(batch.token_ids, operators, arena, NullHooks(), batch.pictures)
    return rms_norm(branch + residual, model.weights.norm, model.config.norm_eps).clone()


def test_the_trained_tower_computes_the_products_rows(folder: Path) -> None:
    vision, rules = picture_shape(folder)
    served = VisionTower(vision, load_tower_weights(folder, vision, torch.float32), rules)
    pictures = [
        image_patches(picture_tensor(held_out_scene(Random(seed))), rules) for seed in range(3)
    ]
    trained = TrainedTower(vision, pictures[0].grid, 0.1)
    stored = load_file(folder / "visual.safetensors")
    trained.load_state_dict({name.removeprefix(PREFIX): t.float() for name, t in stored.items()})
    frames = torch.stack([one_frame(picture.levels, vision) for picture in pictures])
    with torch.no_grad():
        rows = trained(every_frame(frames, vision))
    for picture, found in zip(pictures, rows, strict=True):
        torch.testing.assert_close(found, served.rows(picture), atol=1e-4, rtol=1e-4)


def test_the_inverse_of_a_lower_matrix_and_its_gradient() -> None:
    random = torch.Generator().manual_seed(1)
    lower = torch.randn(2, 3, 11, 11, generator=random, dtype=torch.float64).tril(-1)
    lower.requires_grad_()
    identity = torch.eye(11, dtype=torch.float64)
    product = UnitLowerInverse.apply(lower) @ (identity + lower)
    torch.testing.assert_close(product, identity.expand_as(product))
    assert torch.autograd.gradcheck(lambda given: UnitLowerInverse.apply(given.tril(-1)), (lower,))


def quarter_of(scene: Scene) -> int:
    return 2 * (scene.figure.y > 0.5) + (scene.figure.x > 0.5)


def test_training_scenes_have_no_held_out_combination_and_the_others_only_such() -> None:
    random = Random(7)
    trained = {
        (scene.figure.kind, quarter_of(scene))
        for scene in (training_scene(random) for _ in range(1500))
    }
    held_out = {
        (scene.figure.kind, quarter_of(scene))
        for scene in (held_out_scene(random) for _ in range(400))
    }
    assert held_out == {(kind, held_out_quarter(kind)) for kind in KINDS}
    assert not trained & held_out and len(trained) == 3 * len(KINDS)


def test_a_sample_has_the_tokens_of_the_models_chat_template(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    template = ChatTemplate.load(folder, tokenizer)
    assert template is not None
    names = tokenizer.special_names
    scenes = few_scenes(folder, 6)
    for row, tokens in enumerate(scenes.tokens.tolist()):
        whole = "".join(names.get(token) or tokenizer.decode([token]) for token in tokens)
        question = whole.split("<|im_end|>")[0].removeprefix("<|im_start|>user\n")
        plain = question.replace("<|vision_start|>" + "<|image_pad|>" * 36 + "<|vision_end|>", "")
        assert len(plain) < len(question) and "<|" not in plain
        prompt = template.prompt([ChatMessage("user", plain)], open_answer=True).tokens.tolist()
        start = scenes.starts[row]
        without = tokens[: start - 1] + tokens[start + 37 :]
        assert without[: len(prompt)] == prompt
        places, targets = scenes.places[row].tolist(), scenes.targets[row].tolist()
        assert places[0] == len(prompt) + 37
        for place, target in zip(places, targets, strict=True):
            assert target in (IGNORED, tokens[place + 1])


def test_preparing_a_prepared_folder_changes_nothing(folder: Path, tmp_path: Path) -> None:
    prepare(folder, tmp_path)
    assert len(list(tmp_path.iterdir())) == 6
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (folder / file.name).read_bytes(), file.name


def test_a_prepared_folder_renders_and_tokenises_text_as_before(folder: Path) -> None:
    texts = [
        "Mr. Darcy, \u00fc\u00fd\u00fe\u00ff?",
        "",
        "<|image_pad|>",
        "\u65e5\u672c \u2014 \u00a35\n",
    ]
    prompts = []
    for place in (embedded_model(), folder):
        tokenizer = Tokenizer.load(place)
        assert tokenizer is not None
        template = ChatTemplate.load(place, tokenizer)
        assert template is not None
        chats = [[ChatMessage("system", text), ChatMessage("user", text)] for text in texts]
        prompts.append([template.prompt(chat, open_answer=True).tokens.tolist() for chat in chats])
    assert prompts[0] == prompts[1]


def test_each_question_has_the_figure_as_its_answer() -> None:
    random = Random(5)
    for _ in range(50):
        scene = held_out_scene(random)
        kind = scene.figure.kind
        answers = {exchange.answer for exchange in exchanges(scene, random)}
        assert answers == {f"A {kind.colour} {kind.shape}."}


def test_rows_of_a_kind_are_learnt_through_the_trunk_which_stays(
    folder: Path, trunk: FrozenTrunk
) -> None:
    scenes = few_scenes(folder, 2)
    torch.manual_seed(0)
    kinds = KindRows(36, 256, 0.03)
    before, kept = kinds.colours.clone(), {name: t.clone() for name, t in trunk.tensors.items()}
    optimiser = torch.optim.Adam(kinds.parameters(), lr=0.03)
    seen = []
    for _ in range(3):
        rows = kinds.blurred(scenes.kinds, 0.0)
        loss = mean_loss(answer_logits(trunk, rows, scenes), scenes)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        seen.append(loss.item())
    assert seen[-1] < seen[0]
    moved = (kinds.colours != before).any(-1).any(-1)
    assert moved.tolist() == [number in scenes.kinds[:, 0] for number in range(4)]
    assert all(torch.equal(kept[name], now) for name, now in trunk.tensors.items())
