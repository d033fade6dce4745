"""A GPU's entries for the draft layer equal the CPU's: in prompts with any cuts, in decode graphs
with padding rows, in an early step. They change no token."""

import threading
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from tasuki.engine.assembly.parts import EngineParts, build_parts
from tasuki.engine.config import EngineConfig
from tasuki.engine.roles.early_steps import EarlyStep, EarlySteps
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.forward import Batch, NullHooks, SequenceSlice
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache.arena import Arena
from tasuki.transfer.receiving.incoming_transfer import LayerBarrier
from tests.gpu.shapes import CONFIGS, VOCAB, parts_of
from tests.harness.engines import Lone, engine_config, submit
from tests.harness.goldens import MODELS, Request, Workspace, golden, model_cases, reference_dir
from tests.harness.qwen35 import load_config, load_weights
from tests.harness.scripted_drafts import assert_kept_as_by_one_forward, entries

GOLDENS = [case for case in model_cases("mtp_last_logits") if case[0] in MODELS]
LENGTHS = (1, 2, 63, 64, 65, 130, 200, 333, 7, 90, 128, 129, 5, 64, 31, 400, 17, 256, 3)


def config_of(device: str, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {"arena_mib": 512, "max_batch": 32, "prefill_chunk_tokens": 128}
    return EngineConfig("", dtype="float32", device=device, **(settings | changes))  # type: ignore[arg-type]


@cache
def engine_of(shape: str, draft_layers: int) -> Lone:
    return Lone(config_of("cuda"), parts=parts_of(shape, config_of("cuda"), draft_layers))


@cache
def oracle_of(shape: str) -> Qwen35Model:
    return parts_of(shape, config_of("cpu", arena_mib=64), 1).model


def prompts(seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(1, VOCAB, length).tolist() for length in LENGTHS]


@pytest.mark.parametrize("shape", sorted(CONFIGS))
@pytest.mark.parametrize("rows", [1, 2, 3, 11, 19])
def test_answers_beside_each_other_keep_what_one_forward_keeps(shape: str, rows: int) -> None:
    """Each batch takes graphs of several sizes, with padding rows, as answers end one by one."""
    engine, plain = engine_of(shape, 1), engine_of(shape, 0)
    asked = prompts(rows)[:rows]
    for each in (engine, plain):
        each.flush()
        for number, prompt in enumerate(asked):
            each.post(submit(f"r{number}", prompt, 5 + 3 * number % 17))
        each.run()
    for number, prompt in enumerate(asked):
        tokens = engine.tokens(f"r{number}")
        assert tokens == plain.tokens(f"r{number}")
        log = prompt + tokens
        assert assert_kept_as_by_one_forward(engine, log, oracle_of(shape)) == len(log) - 1
    engine.assert_at_rest()


@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_a_next_turn_goes_on_with_what_is_carried(shape: str) -> None:
    engine = engine_of(shape, 1)
    engine.flush()
    log = prompts(7)[8]
    for turn in range(4):
        log = log + engine.ask(f"t{turn}", log, 9)
        assert assert_kept_as_by_one_forward(engine, log, oracle_of(shape)) == len(log) - 1
        log = log + prompts(turn)[turn + 2]


@cache
def drafting_engine(shape: str, most: int) -> Lone:
    config = config_of(
        "cuda", speculate="prediction", draft_tokens=most, draft_count="most", max_batch=8
    )
    return Lone(config, parts=parts_of(shape, config, 1))


@pytest.mark.parametrize("shape", sorted(CONFIGS))
@pytest.mark.parametrize("most", [1, 4])
def test_rows_with_drafts_leave_what_one_forward_keeps(
    shape: str, most: int, fresh_seed: int
) -> None:
    """Entries of rejected drafts are overwritten; the carry belongs to accepted ones."""
    random = np.random.default_rng(fresh_seed)
    engine, plain = drafting_engine(shape, most), engine_of(shape, 1)
    asked = prompts(most)[3:8]
    plain.flush()
    answers = [plain.ask(f"r{number}", prompt, 40) for number, prompt in enumerate(asked)]
    for count in (0, 1, 3):
        engine.flush()
        for number, (prompt, answer) in enumerate(zip(asked, answers, strict=True)):
            prediction = np.array(answer, dtype=np.int32)
            prediction[random.integers(1, 40, count)] ^= 1
            engine.post(submit(f"r{number}", prompt, 40, prediction=prediction))
        engine.run()
        for number, (prompt, answer) in enumerate(zip(asked, answers, strict=True)):
            assert engine.tokens(f"r{number}") == answer
            usage = engine.finished(f"r{number}").usage
            assert usage.drafted_tokens and usage.accepted_tokens
            log = prompt + answer
            assert assert_kept_as_by_one_forward(engine, log, oracle_of(shape)) == len(log) - 1
    engine.assert_at_rest()


class CpuTwin:
    """A golden model with its draft layer on the CPU, and the same over an arena of the GPU."""

    def __init__(self, name: str) -> None:
        folder = reference_dir(name)
        config = replace(load_config(folder), draft_layers=1)
        self.model = Qwen35Model(config, load_weights(folder, config, torch.float32))
        self.parts: EngineParts = build_parts(engine_config(folder, device="cuda"))
        assert self.parts.layout.draft_layers == 1, "auto keeps a draft layer on a GPU"


@pytest.mark.parametrize(("name", "case_name"), GOLDENS)
@pytest.mark.parametrize("chunk", [1000, 67])
def test_the_guess_after_a_prompt_is_the_goldens(name: str, case_name: str, chunk: int) -> None:
    found, twin = golden(name, case_name), CpuTwin(name)
    prompt, parts = found.prompt, twin.parts
    request = Request(Workspace(twin.model), len(prompt) + 1)
    host = request.workspace.arena
    device = Arena(host.layout, host.slabs, "cuda")
    device.bytes.copy_(host.bytes)
    for start in range(0, len(prompt), chunk):
        item = request.slice(prompt[start : start + chunk])
        logits = parts.model.forward(Batch.pack([item]), device, NullHooks())
    assert int(logits[0].argmax()) == found.greedy[0]
    host.bytes.copy_(device.bytes)
    carried = host.views("carry")[0][request.slots[0]][None]
    guess, _ = twin.model.draft_logits(carried, Batch.pack([request.slice(found.greedy[:1])]), host)
    expected = found.tensor("mtp_last_logits")
    torch.testing.assert_close(guess[0], expected, atol=1e-3, rtol=0)
    assert guess[0].argmax() == expected.argmax()


class Recorded(LayerBarrier):
    """A barrier that opens every layer and records it."""

    def __init__(self) -> None:
        self.layers: list[int] = []

    def wait(self, layer: int) -> bool:
        self.layers.append(layer)
        return True

    def close(self) -> None:
        """Do nothing: no thread waits."""


def test_an_early_step_waits_for_the_draft_layers_window_and_keeps_its_entry() -> None:
    # Here and not above: without a GPU other tests choose Triton's interpreter before its import.
    from tasuki.model.backends.triton_backend import TritonBackend

    parts = parts_of("dense", config_of("cuda"), 1)
    layers, device = parts.model_config.layers, parts.arena.bytes.device
    tokens = prompts(1)[3]
    oracle = Request(Workspace(oracle_of("dense")), len(tokens) + 1)
    first = oracle.slice(tokens)
    backend = TritonBackend(parts.model_config, parts.model.weights.dtype, device)
    model = Qwen35Model(parts.model_config, parts.model.weights, backend)
    ended = threading.Event()
    steps = EarlySteps(model, parts.arena, parts.grammars, ended.set, backend.prepare)
    steps.prepare()
    blocks = parts.layout.blocks_per_slab
    pages = [5 * blocks, 6 * blocks]
    parts.arena.bytes[: 4 * parts.layout.slab_bytes].zero_()
    model.forward(Batch.pack([SequenceSlice(tokens, 0, pages, 0, 1)]), parts.arena, NullHooks())
    torch.cuda.synchronize()
    barrier = Recorded()
    step = EarlyStep(barrier, SequenceSlice([9], len(tokens), pages, 1, 2), SamplingParams())
    assert steps.begin(step)
    assert ended.wait(60) and step.sampled is not None
    steps.close()
    assert barrier.layers == list(range(layers + 1))
    oracle.workspace.forward(first)
    oracle.forward([9])
    count = len(tokens) + 1
    expected = entries(oracle.workspace.arena.views("kv")[-1], oracle.pages, count)
    torch.testing.assert_close(
        entries(parts.arena.views("kv")[-1], pages, count), expected, atol=2e-4, rtol=0
    )
    carried = oracle.workspace.arena.views("carry")[0][oracle.slots[0]]
    torch.testing.assert_close(parts.arena.views("carry")[0][2].cpu(), carried, atol=2e-4, rtol=0)
