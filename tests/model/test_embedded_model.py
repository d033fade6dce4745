"""The model in the package is complete and as recorded. In tasuki's forward it is as good as after
its training."""

import hashlib
import itertools
import json
import math
from typing import Any

import pytest
import torch

from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.forward import Batch
from tasuki.model.named_checkpoints import embedded_model
from tasuki.model.vision.config import VisionConfig
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.rendering.chat_template import ChatTemplate
from tasuki.server.text.tokenizer import Tokenizer
from tests.harness.goldens import Request, Workspace, final_hidden, logits_of
from tests.harness.qwen35 import load_config, load_weights

FOLDER = embedded_model()
RECORD: dict[str, Any] = json.loads((FOLDER / "training.json").read_text(encoding="utf-8"))
QUESTION = "She was resolved to refuse him."
# Loss of a model with equal probabilities for all 2048 tokens.
UNTRAINED_LOSS = math.log(2048)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    found = Tokenizer.load(FOLDER)
    assert found is not None, f"{FOLDER} has no tokenizer.json"
    return found


@pytest.fixture(scope="module")
def model() -> Qwen35Model:
    config = load_config(FOLDER)
    return Qwen35Model(config, load_weights(FOLDER, config, torch.float32))


def test_every_shipped_file_has_its_recorded_sum() -> None:
    lines = (FOLDER / "SHA256SUMS").read_text(encoding="ascii").splitlines()
    recorded = {name: digest for digest, name in (line.split("  ") for line in lines)}
    shipped = {path.name for path in FOLDER.iterdir() if path.is_file()} - {"SHA256SUMS"}
    assert recorded.keys() == shipped
    for name, digest in recorded.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name


def test_the_folder_stays_under_20_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 20_000_000


def test_its_shape_is_one_that_gpu_kernels_accept(model: Qwen35Model) -> None:
    config = model.config
    assert (config.key_dim, config.value_dim, config.head_dim) == (128, 128, 256)
    assert config.max_position >= 32768
    assert config.tied


def test_the_config_names_the_tokenizers_special_tokens(tokenizer: Tokenizer) -> None:
    config = load_config(FOLDER)
    ids = tokenizer.added_tokens
    assert set(config.eos_ids) == {ids["<|im_end|>"], ids["<|endoftext|>"]}
    vision = VisionConfig.load(FOLDER)
    assert vision is not None
    tokens = vision.tokens
    placeholders = {tokens.start, tokens.end, tokens.image, tokens.video}
    assert set(ids.values()) == {*range(config.vocab - 3, config.vocab), *placeholders}


@pytest.mark.parametrize(
    "text",
    ["It is a truth universally acknowledged.", 'naïve £5 — "日本"\n\n\ttab', '{"tool": [1, 2.5]}'],
)
def test_the_tokenizer_gives_any_text_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_recorded_curve_ends_at_the_published_loss() -> None:
    validation = [point["validation"] for point in RECORD["curve"]]
    assert validation[0] == pytest.approx(UNTRAINED_LOSS, rel=0.05)
    assert all(later < earlier for earlier, later in itertools.pairwise(validation[:10]))
    assert RECORD["published_validation_loss"] == pytest.approx(min(validation), rel=0.01)
    assert min(validation) < 0.4 * UNTRAINED_LOSS


def test_our_forward_finds_the_recorded_loss_of_the_held_out_excerpt(
    tokenizer: Tokenizer, model: Qwen35Model
) -> None:
    excerpt = RECORD["excerpt"]
    tokens = tokenizer.encode((FOLDER / excerpt["file"]).read_text(encoding="utf-8"))
    workspace = Workspace(model)
    batch = Batch.pack([Request(workspace, len(tokens)).slice(tokens)])
    logits = logits_of(model, final_hidden(model, batch, workspace.arena))
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(tokens[1:]))
    assert float(loss) == pytest.approx(excerpt["loss"], rel=0.001)


def test_a_greedy_answer_to_a_chat_ends_its_turn(tokenizer: Tokenizer, model: Qwen35Model) -> None:
    template = ChatTemplate.load(FOLDER, tokenizer)
    assert template is not None, f"{FOLDER} has no chat template"
    prompt = template.prompt([ChatMessage("user", QUESTION)], open_answer=True).tokens.tolist()
    request = Request(Workspace(model), len(prompt) + 160)
    answer = request.greedy(request.forward(prompt), 128)
    turn_end = tokenizer.added_tokens["<|im_end|>"]
    assert turn_end in answer, tokenizer.decode(answer)
    text = tokenizer.decode(answer[: answer.index(turn_end)])
    assert len(text.split()) > 10
    assert text.rstrip("\"')")[-1] in ".!?", text
