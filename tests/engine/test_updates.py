"""Updates of weights while a node answers: each token is of the version told, nothing stale is
found, and a failed update changes nothing."""

import json
import math
import os
import random
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasuki.engine import messages as m
from tasuki.engine.config import Role
from tasuki.engine.messages import START_VERSION, PauseMode
from tasuki.model.weights.safetensors_folder import INDEX
from tests.harness.engines import Lone, engine_config, prompt, submit
from tests.harness.versions import Oracle, assert_drawn_by, update, updated, version
from tests.harness.waiting import HANG_SECONDS

PROMPTS = {f"r{n}": prompt(70 + 30 * n, seed=n) for n in range(3)}


@dataclass
class Versions:
    """Two versions of one model. folders, oracles: by their names."""

    folders: dict[str, Path]
    oracles: dict[str, Oracle]


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    root = tmp_path_factory.mktemp("versions")
    folders = {name: version(root / name, seed) for seed, name in enumerate((START_VERSION, "2"))}
    return Versions(folders, {name: Oracle(folder) for name, folder in folders.items()})


@pytest.fixture
def lone(versions: Versions) -> Iterator[Lone]:
    engine = Lone(engine_config(versions.folders[START_VERSION]))
    yield engine
    engine.run()
    engine.assert_at_rest()


def to_second(lone: Lone, versions: Versions, mode: PauseMode) -> m.WeightsUpdated:
    answer = update(lone, versions.folders["2"], mode, "2")
    assert answer.error is None and answer.version == "2"
    return answer


@pytest.mark.parametrize("mode", PauseMode)
def test_every_token_under_load_is_of_the_version_told(
    lone: Lone, versions: Versions, mode: PauseMode
) -> None:
    for name, tokens in PROMPTS.items():
        lone.post(submit(name, tokens, 14))
    lone.steps(6)
    begin_staged(lone, versions.folders["2"], mode, "2")
    lone.post(submit("late", PROMPTS["r0"], 6))
    answer = updated(lone)
    assert answer.error is None and answer.requests >= len(PROMPTS)
    lone.run()
    for name, tokens in PROMPTS.items():
        ran = {run.version for run in lone.finished(name).weights}
        if mode is PauseMode.ABORT:
            assert lone.finished(name).reason is m.FinishReason.ABORT
        else:
            assert len(lone.tokens(name)) == 14
        if mode is PauseMode.KEEP:
            assert ran == {START_VERSION, "2"}
        else:
            assert_drawn_by(lone, name, tokens, versions.oracles)
        assert mode is not PauseMode.RETRACT or ran == {START_VERSION, "2"}
    for name, tokens in PROMPTS.items():
        # What was kept of before, or of both versions, is found by nobody.
        again = f"again-{name}"
        lone.post(submit(again, tokens + lone.tokens(name), 4))
        lone.run()
        assert_drawn_by(lone, again, tokens + lone.tokens(name), versions.oracles)
        if mode is not PauseMode.RETRACT:
            assert lone.hit(again).usable_tokens <= (len(tokens) if name == "r0" else 0)
    if mode is not PauseMode.ABORT:
        assert_drawn_by(lone, "late", PROMPTS["r0"], versions.oracles)


def begin_staged(lone: Lone, folder: Path, mode: PauseMode, name: str) -> None:
    """Begin an update, and return when its weights are staged, without a step."""
    lone.post(m.UpdateWeights(0, str(folder), mode, name))
    in_progress = lone.engine.updates._update
    assert in_progress is not None
    in_progress.staging.exception(HANG_SECONDS)


def test_a_warm_cache_answers_as_a_fresh_node_with_no_hit_at_first(
    lone: Lone, versions: Versions
) -> None:
    tokens = PROMPTS["r1"]
    lone.ask("warm", tokens, 8)
    lone.ask("hit", tokens, 8)
    assert lone.hit("hit").usable_tokens > 0
    to_second(lone, versions, PauseMode.WAIT)
    assert lone.ask("first", tokens, 8) == versions.oracles["2"].answer(tokens, 8)
    assert lone.hit("first").usable_tokens == 0
    assert lone.ask("second", tokens, 8) == versions.oracles["2"].answer(tokens, 8)
    assert lone.hit("second").usable_tokens > 0


@pytest.mark.parametrize("steps", [2, 8], ids=["in its prompt", "in its answer"])
def test_mixed_states_are_found_under_no_version(versions: Versions, steps: int) -> None:
    first, second = (versions.folders[name] for name in (START_VERSION, "2"))
    lone = Lone(engine_config(first, prefill_chunk_tokens=64))
    tokens = prompt(300, seed=7)
    update(lone, second, PauseMode.WAIT, "2")
    lone.post(submit("mixed", tokens, 12, marks=(128, 192, 256)))
    lone.steps(steps)
    assert bool(lone.tokens("mixed")) is (steps == 8)
    begin_staged(lone, first, PauseMode.KEEP, START_VERSION)
    assert updated(lone).error is None
    lone.run()
    after = tokens + lone.tokens("mixed")
    # Both versions come back, each with the names that its states had.
    for folder, name in ((second, "2"), (first, START_VERSION), (second, "2")):
        update(lone, folder, PauseMode.WAIT, name)
        for end in (150, 210, 280, 302, len(after)):
            asked = f"{name}-{end}-{len(lone.said)}"
            lone.ask(asked, after[:end], 3)
            assert_drawn_by(lone, asked, after[:end], versions.oracles)
    lone.assert_at_rest()


@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_updates_under_load_serve_nothing_stale(versions: Versions, count: int) -> None:
    """Names of versions return, so states of before come back too. Memory stays."""
    draws, held = random.Random(count), math.inf
    lone = Lone(engine_config(versions.folders[START_VERSION], host_cache_gib=0.02))
    asked: dict[str, list[int]] = {}
    now = START_VERSION
    for number in range(count):
        for place in range(draws.randint(0, 2)):
            name = f"{number}-{place}"
            asked[name] = PROMPTS[draws.choice(list(PROMPTS))]
            forks = (m.Fork(m.RequestId(f"{name}-fork"), 1),) if draws.random() < 0.3 else ()
            asked |= {fork.request_id: asked[name] for fork in forks}
            lone.post(submit(name, asked[name], draws.randint(1, 6), forks=forks))
        lone.steps(draws.randint(0, 6))
        now = "2" if now == START_VERSION else START_VERSION
        mode = draws.choice([PauseMode.RETRACT, PauseMode.WAIT, PauseMode.ABORT])
        assert update(lone, versions.folders[now], mode, now).error is None
        if number == 20:
            held = resident_mib()
    assert resident_mib() < held + 100
    lone.run()
    for name, tokens in asked.items():
        assert_drawn_by(lone, name, tokens, versions.oracles)
    lone.assert_at_rest()
    lone.engine.close()


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def changed(folder: Path, source: Path, name: str, change: "torch.Tensor | None") -> Path:
    """Write the source's folder with one tensor changed; None: without it."""
    version(folder, 9, source)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    if change is None:
        del tensors[name]
    else:
        tensors[name] = change
    save_file(tensors, path)
    return folder


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("absent", "no folder of this machine"),
        ("empty", "holds no"),
        ("pipe", "no plain file"),
        ("endless", "no plain file"),
        ("elsewhere", "no readable weight_map"),
        ("missing", "norm"),
        ("shape", "shape"),
        ("nan", "NaN or infinite"),
        ("nan unused", "NaN or infinite"),
        ("config", "describes another model"),
        ("torn", "truncated or corrupt"),
        ("memory", "GiB of memory are free"),
    ],
)
def test_a_refused_update_changes_nothing(
    lone: Lone,
    versions: Versions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    says: str,
) -> None:
    source, folder = versions.folders["2"], tmp_path / "folder"
    name = next(name for name in load_file(source / "model.safetensors") if "norm" in name)
    tensor = load_file(source / "model.safetensors")[name]
    match fault:
        case "empty":
            folder.mkdir()
        case "pipe":
            shutil.copytree(source, folder)
            (folder / "model.safetensors").unlink()
            os.mkfifo(folder / "model.safetensors")
        case "endless":
            shutil.copytree(source, folder)
            (folder / "config.json").unlink()
            (folder / "config.json").symlink_to("/dev/zero")
        case "elsewhere":
            shutil.copytree(source, folder)
            (folder / INDEX).write_text(json.dumps({"weight_map": {name: "/dev/zero"}}))
        case "missing":
            changed(folder, source, name, None)
        case "shape":
            changed(folder, source, name, torch.cat([tensor, tensor]))
        case "nan":
            changed(folder, source, name, torch.full_like(tensor, float("nan")))
        case "nan unused":
            # A short forward does not read the last row.
            rows = next(name for name in load_file(source / "model.safetensors") if "embed" in name)
            embedding = load_file(source / "model.safetensors")[rows]
            embedding[-1, 0] = float("nan")
            changed(folder, source, rows, embedding)
        case "config":
            version(folder, 9, source)
            config = json.loads((folder / "config.json").read_text())
            text = config.get("text_config", config)
            text["rms_norm_eps"] = 1e-3
            (folder / "config.json").write_text(json.dumps(config))
        case "torn":
            version(folder, 9, source)
            path = folder / "model.safetensors"
            path.write_bytes(path.read_bytes()[:-100])
        case "memory":
            folder = source
            staging = lone.engine.updates._staging
            assert not isinstance(staging, str)
            scarce = replace(staging, available=lambda: staging.staged_bytes - 1)
            monkeypatch.setattr(lone.engine.updates, "_staging", scarce)
    lone.ask("before", PROMPTS["r0"], 4)
    lone.post(submit("running", PROMPTS["r1"], 20))
    lone.steps(4)
    answer = update(lone, folder, PauseMode.ABORT)
    assert answer.error is not None and says in answer.error.message
    assert answer.error.message.endswith("the weights are as before")
    assert answer.version == START_VERSION
    lone.run()
    assert_drawn_by(lone, "running", PROMPTS["r1"], versions.oracles)
    assert lone.ask("after", PROMPTS["r0"], 4) == lone.tokens("before")
    assert lone.hit("after").usable_tokens > 0
    monkeypatch.undo()
    to_second(lone, versions, PauseMode.RETRACT)


@pytest.mark.parametrize("mode", PauseMode)
def test_a_pause_lasts_until_it_is_ended(lone: Lone, versions: Versions, mode: PauseMode) -> None:
    lone.post(submit("running", PROMPTS["r0"], 12))
    lone.steps(5)
    lone.post(m.PauseAnswers(1, mode))
    lone.run()
    assert [each.query_id for each in lone.all_said(m.AnswersPaused)] == [1]
    count = len(lone.tokens("running"))
    over = mode in (PauseMode.ABORT, PauseMode.WAIT)
    assert bool(lone.all_said(m.Finished)) is over
    assert count == 12 or mode is not PauseMode.WAIT
    lone.post(submit("later", PROMPTS["r1"], 3))
    to_second(lone, versions, PauseMode.ABORT)
    lone.run()
    assert len(lone.tokens("running")) == count and not lone.tokens("later")
    lone.post(m.ResumeAnswers(2))
    lone.run()
    assert_drawn_by(lone, "later", PROMPTS["r1"], versions.oracles)
    if not over:
        assert len(lone.tokens("running")) == 12
    if mode is not PauseMode.KEEP:
        assert_drawn_by(lone, "running", PROMPTS["r0"], versions.oracles)


@pytest.mark.parametrize("change", ["written", "cut"])
def test_a_write_to_a_folder_after_its_reading_changes_nothing(
    lone: Lone, versions: Versions, tmp_path: Path, change: str
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(versions.folders["2"], folder)
    path = folder / "model.safetensors"
    lone.post(submit("running", PROMPTS["r0"], 12))
    lone.steps(4)
    begin_staged(lone, folder, PauseMode.WAIT, "2")
    if change == "cut":
        os.truncate(path, 100)
    else:
        with path.open("r+b") as file:
            file.write((versions.folders[START_VERSION] / path.name).read_bytes())
    assert updated(lone).error is None
    lone.ask("after", PROMPTS["r1"], 8)
    for name, tokens in (("running", PROMPTS["r0"]), ("after", PROMPTS["r1"])):
        assert_drawn_by(lone, name, tokens, versions.oracles)


def test_a_write_to_the_folder_of_the_start_changes_nothing(
    versions: Versions, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(versions.folders[START_VERSION], folder)
    lone = Lone(engine_config(folder))
    os.truncate(folder / "model.safetensors", 100)
    lone.ask("after", PROMPTS["r0"], 8)
    assert_drawn_by(lone, "after", PROMPTS["r0"], versions.oracles)


def test_a_resume_beside_a_failed_update_ends_the_pause(lone: Lone, versions: Versions) -> None:
    lone.post(m.PauseAnswers(1, PauseMode.KEEP))
    begin_staged(lone, versions.folders["2"] / "none", PauseMode.WAIT, "")
    lone.post(m.ResumeAnswers(2))
    lone.ask("after", PROMPTS["r0"], 2)
    assert_drawn_by(lone, "after", PROMPTS["r0"], versions.oracles)


def test_one_update_is_in_progress_at_a_time(lone: Lone, versions: Versions) -> None:
    for query_id in (1, 2):
        lone.post(m.UpdateWeights(query_id, str(versions.folders["2"]), PauseMode.WAIT, "2"))
    (refused,) = lone.all_said(m.WeightsUpdated)
    assert refused.query_id == 2 and refused.error is not None
    assert refused.error.kind is m.ErrorKind.OVERLOADED
    assert updated(lone).query_id == 1


def test_a_version_without_a_name_is_named_by_its_tensors(lone: Lone, versions: Versions) -> None:
    first = update(lone, versions.folders["2"], PauseMode.WAIT).version
    update(lone, versions.folders[START_VERSION], PauseMode.WAIT)
    assert update(lone, versions.folders["2"], PauseMode.WAIT).version == first
    assert len(first) == 16 and first != START_VERSION


def test_a_pair_s_update_ends_once_its_links_are_closed(versions: Versions) -> None:
    lone = Lone(engine_config(versions.folders[START_VERSION]), Role.DECODE)
    lone.ask("before", PROMPTS["r0"], 3)
    begin_staged(lone, versions.folders["2"], PauseMode.WAIT, "2")
    lone.post(submit("later", PROMPTS["r0"], 3))
    lone.run()
    (changed,) = lone.all_said(m.WeightsChanged)
    assert changed.names == lone.engine._cache.weights.prefix
    assert not lone.all_said(m.WeightsUpdated) and not lone.tokens("later")
    lone.post(m.LinksClosed())
    lone.run()
    assert [each.version for each in lone.all_said(m.WeightsUpdated)] == ["2"]
    assert_drawn_by(lone, "later", PROMPTS["r0"], versions.oracles)
    assert lone.hit("later").usable_tokens == 0
    lone.assert_at_rest()
