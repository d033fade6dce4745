"""The trained draft layer is the served one: its logits, also chained, and the conversion of the
trained file to a checkpoint's."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.forward import Batch, SequenceSlice
from tests.harness.goldens import Request, Workspace, final_hidden, golden, reference_dir
from tests.harness.qwen35 import load_config, load_weights
from tools.embedded.draft_head import Batch as Texts
from tools.embedded.draft_head import DraftHead, loss, scores
from tools.training.checkpoint import DRAFT_HEAD, DRAFT_RECORD, add_draft_head

FOLDER = reference_dir("small-dense")
TOKENS = golden("small-dense", "long").prompt[:80]


def served() -> Qwen35Model:
    config = replace(load_config(FOLDER), draft_layers=1)
    return Qwen35Model(config, load_weights(FOLDER, config, torch.float32))


def published() -> dict[str, torch.Tensor]:
    """Return its draft layer's tensors under a module's names."""
    found = load_file(FOLDER / "model.safetensors").items()
    return {name.removeprefix("mtp."): t.float() for name, t in found if name.startswith("mtp.")}


def trained(model: Qwen35Model) -> DraftHead:
    head = DraftHead(model.config)
    head.load_state_dict(published())
    return head


def texts(model: Qwen35Model) -> Texts:
    request = Request(Workspace(model), len(TOKENS))
    batch = Batch.pack([request.slice(TOKENS)])
    hidden = final_hidden(model, batch, request.workspace.arena).clone()[None]
    tokens = torch.tensor([TOKENS])
    embedding = model.weights.embedding
    return Texts(tokens, functional.embedding(tokens, embedding), hidden, embedding)


def test_what_is_trained_computes_what_is_served() -> None:
    model = served()
    given = texts(model)
    with torch.no_grad():
        chain = trained(model)(given.embedded, given.hidden, 3)
    for begun in (1, 2, 63, 64, 76):
        request = Request(Workspace(model), len(TOKENS) + 4)
        pages, slot, arena = request.pages, request.slots[0], request.workspace.arena
        arena.views("kv")[-1].zero_()  # Entry 0 is written too, but skipped.
        behind = given.hidden[0, :begun]
        for step, first in enumerate((1, begun + 1, begun + 2)):
            # The first step covers the text up to the chain's begin, later ones a token each.
            place = begun + step
            items = [SequenceSlice(TOKENS[first : place + 1], first, pages, slot, None)]
            logits, behind = model.draft_logits(behind, Batch.pack(items), arena)
            behind = behind[-1:]
            expected = functional.linear(chain[step][0, place], given.head)
            torch.testing.assert_close(logits[-1], expected, atol=2e-4, rtol=2e-4)


def test_a_step_of_training_lowers_the_loss_and_moves_every_tensor() -> None:
    model = served()
    given, head = texts(model), trained(model)
    before = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    optimiser = torch.optim.AdamW(head.parameters(), lr=3e-3)
    seen = []
    for _ in range(4):
        optimiser.zero_grad()
        total = loss(scores(head, given), 0.1)
        total.backward()
        optimiser.step()
        seen.append(total.item())
    assert seen[-1] < seen[0]
    assert all(not torch.equal(before[name], now) for name, now in head.state_dict().items())


def test_what_was_trained_takes_the_place_of_a_checkpoints_layer(tmp_path: Path) -> None:
    was = load_file(FOLDER / "model.safetensors")
    checkpoint, out = tmp_path / "model", tmp_path / "out"
    checkpoint.mkdir()
    out.mkdir()
    save_file(was, checkpoint / "model.safetensors")
    head = {f"mtp.{name}": (t + 1).bfloat16() for name, t in published().items()}
    save_file(head, out / DRAFT_HEAD)
    (out / DRAFT_RECORD).write_text("{}\n", encoding="utf-8")
    for _ in range(2):
        add_draft_head(checkpoint, out)
        now = load_file(checkpoint / "model.safetensors")
        assert now.keys() == was.keys()
        for name, tensor in now.items():
            assert (
                torch.equal(tensor, head.get(name, was[name])) and tensor.dtype == was[name].dtype
            )
    assert (checkpoint / DRAFT_RECORD).exists()
