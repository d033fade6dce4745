"""A block drafter's keys and values move with the pages: through a pair, pulled back, and from host
memory and disk. Answers are those without drafts. As many drafts are accepted as on one node."""

import json
from functools import cache
from pathlib import Path

import pytest

from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import EngineParts, build_parts, kept_contract, served_digest
from tasuki.engine.tiers.digests import DigestKind
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.transfer.protocol.contract import Contract, ContractMismatch, diff
from tests.harness.block_drafters import CONFIG, MODEL, NaiveDrafter, write_drafter
from tests.harness.engine_pair import engine_pair
from tests.harness.engines import Lone, engine_config, prompt, submit
from tests.harness.goldens import golden, reference_dir
from tests.harness.kept_goldens import answer_all, node
from tests.harness.rank_pairs import handed_over_as_goldens_have_it
from tests.harness.tiered_goldens import come_back_from_below, tiered_engine

CASE = golden(MODEL, "long")
NEW = 32
HOT = SamplingParams(max_new_tokens=NEW, temperature=100.0, seed=3, ignore_eos=True)
"""Sampling decided mostly by the noise shared with drafts, so that random weights are right."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter"))


def drafting(folder: Path) -> dict[str, object]:
    return {"drafter": str(folder), "speculate": "block", "draft_tokens": 7}


def parts(folder: Path) -> EngineParts:
    return build_parts(engine_config(reference_dir(MODEL), **drafting(folder)))


@cache
def on_one_node(folder: Path) -> tuple[list[int], m.Usage]:
    """Return its answer without drafts, and the usage with drafts."""
    plain = Lone(engine_config(reference_dir(MODEL), speculate="off"))
    engine = Lone(engine_config(reference_dir(MODEL), **drafting(folder)), parts=parts(folder))
    answer = plain.ask("r", CASE.prompt, NEW, sampling=HOT)
    assert engine.ask("r", CASE.prompt, NEW, sampling=HOT) == answer
    log = CASE.prompt + answer
    assert NaiveDrafter(folder).assert_made(engine, log) == len(log) - 1
    return answer, engine.finished("r").usage


@pytest.mark.parametrize("early", [True, False], ids=["early step", "at Done"])
def test_a_handed_over_prompt_is_drafted_where_it_is_decoded(folder: Path, early: bool) -> None:
    answer, fused = on_one_node(folder)
    asked = submit("r", CASE.prompt, NEW, sampling=HOT)
    with engine_pair(parts(folder), parts(folder), settings=drafting(folder)) as pair:
        if early:
            pair.join(pair.begin(asked))
        else:
            transfer = pair.hand_over(asked)
            pair.ready(transfer, None)
            assert isinstance(pair.done(transfer), m.RemoteDone)
            pair.decode.run()
        assert pair.decode.tokens("r") == answer
        (use,) = pair.decode.finished("r").usage.drafts
        assert use.source == "block"
        # The first token comes from the other node, and an early step has one without drafts.
        assert sum(use.accepted) > fused.accepted_tokens - 8
        log = CASE.prompt + answer
        assert NaiveDrafter(folder).assert_made(pair.decode, log) == len(log) - 1
        for engine in (pair.prefill, pair.decode):
            engine.assert_at_rest()


def test_loaded_from_host_memory_as_many_are_accepted(folder: Path) -> None:
    answer, fused = on_one_node(folder)
    engine = tiered_engine(MODEL, "cpu", **drafting(folder))
    log = CASE.prompt + answer
    for name in ("cold", "loaded"):
        assert engine.ask(name, CASE.prompt, NEW, sampling=HOT) == answer
        assert engine.finished(name).usage.accepted_tokens == fused.accepted_tokens
        assert NaiveDrafter(folder).assert_made(engine, log) == len(log) - 1
        push = prompt(engine.engine._cache.capacity_tokens(3) - PAGE_TOKENS, seed=1)
        engine.ask(f"push {name}", [token % 100 for token in push], 1)
    assert engine.hit("loaded").loaded["host"] > PAGE_TOKENS
    engine.assert_at_rest()
    engine.engine.close()


@pytest.mark.slow
def test_through_two_daemons_and_pulled_back(folder: Path) -> None:
    flags = ("--drafter", str(folder), "--draft-tokens", "7", "--draft-count", "most")
    handed_over_as_goldens_have_it(MODEL, 1, 1, where=lambda ranks: flags)


@pytest.mark.slow
def test_back_from_host_memory(folder: Path) -> None:
    come_back_from_below(MODEL, "cpu", **drafting(folder))


@pytest.mark.slow
def test_back_from_the_disk_of_a_node_before(folder: Path, tmp_path: Path) -> None:
    with node("cpu", tmp_path, **drafting(folder)) as first:
        answer_all(first)
    with node("cpu", tmp_path, **drafting(folder)) as second:
        assert second.stats().tiers[1].kept["restored"] > 0
        assert all(hit.loaded["disk"] > 0 for hit in answer_all(second).values())
    # Another drafter finds nothing, since its keys and values would be others.
    other = write_drafter(tmp_path / "other", seed=8)
    with node("cpu", tmp_path, **drafting(other)) as third:
        assert third.stats().tiers[1].kept["restored"] == 0
        answer_all(third)


def contract(*folders: Path) -> Contract:
    """Return the contract of a node, with a drafter if a folder is given."""
    settings = drafting(folders[0]) if folders else {}
    config = engine_config(reference_dir(MODEL), draft_layer="off", **settings)
    built = build_parts(config)
    return Contract(served_digest(config), built.layout, constants=built.model_config.constants)


def test_nodes_of_unequal_drafters_refuse_each_other_by_name(folder: Path, tmp_path: Path) -> None:
    ours, without = contract(folder).flat(), contract().flat()
    assert not diff(ours, contract(folder).flat())
    differing = {each.field for each in diff(ours, without)}
    assert differing == {"drafter", "weights_digest"}
    other = CONFIG | {"rope_theta": 20000.0}
    turned = contract(write_drafter(tmp_path / "turned", other))
    found = diff(ours, turned.flat())
    assert [each.field for each in found] == ["drafter"]
    with pytest.raises(ContractMismatch, match="same --drafter"):
        raise ContractMismatch(found, turned.flags)
    weights = diff(ours, contract(write_drafter(tmp_path / "seed", seed=8)).flat())
    assert [each.field for each in weights] == ["weights_digest"]


def test_off_is_todays_contract_and_layout() -> None:
    """A node without a drafter has no field and no byte of one."""
    built = build_parts(engine_config(reference_dir(MODEL)))
    model, kind = built.model_config, DigestKind.XXH3
    flat = kept_contract("w", model, built.model.weights, built.layout, kind)
    assert "drafter" not in json.dumps(flat)
    assert len(built.layout.layers) == built.model_config.layers + 1
