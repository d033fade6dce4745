"""FP8 keys and values on a GPU. In float32 they give every token of the CPU with the same pages,
when a prompt is cut, cached, drafted or handed over. Pages have the same bytes. In bf16 the
divergence is no more than the rounding of the rows explains, also on a trained model.

KL is of the GPU's next-token distribution from that of pages of numbers, in nats.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tasuki.model.families.loading import build_model
from tasuki.model.forward import Batch
from tasuki.model.named_checkpoints import embedded_model
from tasuki.model.ops.attention.page_rows import fp8_views
from tasuki.pycache.arena import Arena
from tasuki.pycache.fp8_rows import decode_rows
from tasuki.pycache.parts import FP8_ROWS
from tasuki.server.text.tokenizer import Tokenizer
from tasuki.transfer.transports.nixl.transport import installed_package
from tests.gpu.shapes import CONFIGS, parts_of
from tests.gpu.test_gpu_draft_entries import config_of, prompts
from tests.harness.daemons import Node, Pair, asked, flags, questions
from tests.harness.engines import Lone, submit
from tests.harness.fp8_answers import Fp8Answers, assert_answered_as_whole, engine, whole
from tests.harness.goldens import (
    OWN_MODELS,
    Request,
    Workspace,
    cases_of,
    final_hidden,
    logits_of,
    reference_dir,
)
from tests.harness.qwen35 import load_config, load_weights

MOST_KL = 0.01
TEXT = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
    "must be in want of a wife. However little known the feelings or views of such a man may be "
)
CUDA = torch.device("cuda")
FP8 = ("--kv-dtype", "fp8")


class TestFp8AnswersOnTheGpu(Fp8Answers):
    device = "cuda"


@pytest.mark.parametrize("speculate", ["prediction", "mtp"])
def test_drafts_change_no_token(speculate: str) -> None:
    model = OWN_MODELS[0]
    settings = {"speculate": speculate, "draft_tokens": 3, "draft_count": "most"}
    lone = engine(model, "cuda", **settings)
    for name, case in cases_of(model).items():
        asked = submit(name, case.prompt, len(case.greedy))
        if speculate == "prediction":
            asked = replace(asked, prediction=np.array(whole(model)[name], np.int32))
        lone.post(asked)
    lone.run()
    assert_answered_as_whole(lone, model)
    assert any(lone.finished(name).usage.drafted_tokens for name in whole(model))


def stored_rows(arena: Arena, pages: list[int], tokens: int) -> tuple[Tensor, Tensor]:
    """Return codes and scales of a sequence's tokens in every region, on the host: [regions,
    tokens, heads, sides, dim] and without dim."""
    found = [fp8_views(kv[pages].cpu()) for kv in arena.views("kv")]
    codes = torch.stack([codes.permute(0, 3, 1, 2, 4).flatten(0, 1) for codes, _ in found])
    scales = torch.stack([scales.permute(0, 3, 1, 2).flatten(0, 1) for _, scales in found])
    return codes[:, :tokens], scales[:, :tokens]


@pytest.mark.parametrize("model", OWN_MODELS)
@pytest.mark.parametrize("chunk", [4096, 64, 7])
def test_pages_hold_the_bytes_of_the_cpu(model: str, chunk: int) -> None:
    """Both compute in float32. A number between two codes to the last bit may get the other code:
    few in thousands, and by one step."""
    prompt = max((case.prompt for case in cases_of(model).values()), key=len)
    config = load_config(reference_dir(model))
    rows = []
    for device in (torch.device("cpu"), CUDA):
        weights = load_weights(reference_dir(model), config, torch.float32, device)
        workspace = Workspace(build_model(config, weights), kv_dtype=FP8_ROWS)
        arena = workspace.arena
        if device == CUDA:
            workspace.arena = Arena(arena.layout, arena.slabs, device)
            workspace.arena.bytes.fill_(0xFF)
        request = Request(workspace, len(prompt))
        for start in range(0, len(prompt), chunk):
            request.forward(prompt[start : start + chunk])
        rows.append(stored_rows(workspace.arena, request.pages, len(prompt)))
    (codes, scales), (mine, my_scales) = rows
    assert (scales != my_scales).double().mean() < 1e-4
    assert (codes != mine).double().mean() < 1e-3
    numbers, my_numbers = (decode_rows(*found, torch.float32) for found in rows)
    assert (numbers - my_numbers).abs().max() <= numbers.abs().max() / 8


@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_bf16_answers_are_those_of_pages_of_numbers_as_far_as_rows_are(shape: str) -> None:
    """Decode graphs, prompts in chunks and drafts run on a random model with small margins. Most
    tokens are the same, and nearly all first ones."""
    answers = []
    for changes in ({}, {"kv_dtype": "fp8"}):
        config = replace(config_of("cuda", prefill_chunk_tokens=512, **changes), dtype="bfloat16")
        lone = Lone(config, parts=parts_of(shape, config))
        for number, tokens in enumerate(prompts(3)):
            lone.post(submit(f"r{number}", tokens, 6))
        lone.run()
        answers.append([lone.tokens(f"r{number}") for number in range(len(prompts(3)))])
        lone.assert_at_rest()
    firsts = [mine[0] == other[0] for mine, other in zip(*answers, strict=True)]
    assert sum(firsts) >= len(firsts) - 4


def test_a_trained_model_says_nearly_the_same() -> None:
    folder = embedded_model()
    config, tokenizer = load_config(folder), Tokenizer.load(folder)
    assert tokenizer is not None
    tokens = tokenizer.encode(TEXT * 4)
    for dtype in (torch.float32, torch.bfloat16):
        model = build_model(config, load_weights(folder, config, dtype, CUDA))
        found = []
        for kv_dtype in (None, FP8_ROWS):
            name = str(dtype).removeprefix("torch.")
            layout = config.cache_layout(kv_dtype or name, name, "float32")
            workspace = Workspace(model, cache_dtype=name, kv_dtype=kv_dtype or name)
            workspace.arena = Arena(layout, 48, CUDA)
            workspace.arena.bytes.fill_(0xFF)
            request = Request(workspace, len(tokens))
            hidden = final_hidden(model, Batch.pack([request.slice(tokens)]), workspace.arena)
            found.append(logits_of(model, hidden).double().log_softmax(-1))
        exact, rounded = found
        divergence = float((exact.exp() * (exact - rounded)).sum(-1).mean())
        same = float((exact.argmax(-1) == rounded.argmax(-1)).double().mean())
        print(f"{dtype}: {divergence:.6f} nats, {same:.1%} of top tokens")
        assert 0 < divergence <= MOST_KL and same >= 0.95


@pytest.mark.skipif(installed_package() is None, reason="NIXL is not installed")
def test_two_daemons_of_one_gpu_hand_over_what_lies_in_their_pages() -> None:
    oracle = Node("serve", *flags(), *FP8, "--prefill-chunk-tokens", "512").wait_ready()
    told = questions((700, 300))
    pair = Pair(told, device="cuda", more=FP8)
    try:
        pair.fix()
        for number, question in enumerate(told):
            expected = asked(oracle, question.prompt, b"salt").result()
            answer = pair.ask(number).result()
            assert answer.token_ids == expected.token_ids
            assert answer.usage.prefilled_on != "local" and not answer.usage.local_fallback
        pair.assert_at_rest()
    finally:
        pair.stop()
        assert oracle.stop() == 0
