"""Each field of the contract differs, is absent or is unknown, one at a time. The node rejects it
at connect, by name, before any transfer opens and any transport connects."""

from dataclasses import fields, replace

import grpc
import pytest

from tasuki.model.config import DeltaNetConfig, MoeShape
from tasuki.model.config_json import Yarn
from tasuki.model.drafter_shape import DrafterShape
from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc
from tasuki.transfer.protocol.contract import Contract, diff
from tasuki.transfer.protocol.messages import node_to_wire
from tests.harness.handover_nodes import Nodes, nodes
from tests.harness.loopback_pair import FULL, GDN, small_layout
from tests.harness.model_shapes import MOE
from tests.harness.waiting import HANG_SECONDS

STRANGER = "decode-1"
OURS = Contract("weights", small_layout())


def other(value: object) -> object:
    """Return another value of the same kind."""
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, tuple):
        return tuple({FULL: GDN, GDN: FULL}[kind] for kind in value)
    return f"not {value}"


def mismatches() -> dict[str, Contract]:
    """Return contracts by the name of the only field in which they differ from OURS."""
    made = {
        field.name: replace(OURS, **{field.name: other(getattr(OURS, field.name))})
        for field in fields(Contract)
        if field.name not in ("layout", "pictures", "tensors_digest")
    }
    for field in OURS.layout.fields:
        own = [
            replace(one, text=f"not {one.text}") if one == field else one
            for one in OURS.layout.fields
        ]
        made[field.name] = replace(OURS, layout=replace(OURS.layout, fields=tuple(own)))
    drafting = replace(OURS.layout, draft_layers=1)
    made["draft_layers"] = replace(OURS, layout=drafting)
    return made


async def differing(both: Nodes, contract: dict[str, str], transport: str = "loopback") -> set[str]:
    """Return the fields named by the prefill node; empty if it connects."""
    node = node_to_wire(both.client.links[0]._node)
    node.name, node.transport = STRANGER, transport
    async with grpc.aio.insecure_channel(f"127.0.0.1:{both.port}") as channel:
        stub = handover_pb2_grpc.HandoverStub(channel)
        request = pb.ConnectRequest(node=node, contract=contract)
        answer: pb.ConnectResponse = await stub.Connect(request, timeout=HANG_SECONDS)
    assert all(item.ours != item.theirs for item in answer.refused.differences)
    return {item.field for item in answer.refused.differences}


def test_the_matrix_has_every_field_of_the_contract() -> None:
    # Activations in bf16 have no field, as before there was a choice.
    assert set(mismatches()) == set(OURS.flat()) | {"step_activations"}
    assert {"wire_version", "weights_digest", "page_tokens", "ssm_dtype"} <= set(OURS.flat())


@pytest.mark.parametrize(
    ("files", "tensors", "refused"),
    [
        ("weights", "tree", set()),
        ("other files", "tree", set()),
        ("weights", "(not used)", set()),
        ("other files", "(not used)", {"weights_digest"}),
        ("other files", "other tree", {"weights_digest"}),
    ],
)
def test_equal_tensors_are_equal_weights_in_any_files(
    files: str, tensors: str, refused: set[str]
) -> None:
    ours = replace(OURS, tensors_digest="tree").flat()
    theirs = replace(OURS, weights_digest=files, tensors_digest=tensors).flat()
    assert {found.field for found in diff(ours, theirs)} == refused
    assert {found.field for found in diff(theirs, ours)} == refused


WEIGHTS_SHOW = {
    *("model_type", "vocab", "hidden", "query_heads", "tied", "head_block"),
    *("experts", "intermediate", "shared_intermediate"),
}
"""Fields visible in the weights, by the shapes or the set of tensors."""
CHANGES_NO_STATE = {"max_position", "eos_ids", "head_rows", "held", "first_value_head"}
"""Fields that change no state, or that belong to one rank of several."""


DRAFTER = DrafterShape(
    layers=2,
    hidden=MOE.hidden,
    intermediate=96,
    query_heads=6,
    kv_heads=2,
    head_dim=32,
    rope_theta=1e4,
    norm_eps=1e-6,
    block=8,
    mask_id=3,
    target_layers=(0, 2),
)


def contract_of(model: DeltaNetConfig) -> dict[str, str]:
    layout = model.cache_layout("float32", "float32", "float32")
    return Contract("weights", layout, constants=model.constants).flat()


def other_models() -> dict[str, DeltaNetConfig]:
    """Return configs by the name of the only field in which they differ from MOE."""
    experts = MOE.feed_forward
    assert isinstance(experts, MoeShape)
    made = {
        field.name: replace(MOE, feed_forward=replace(experts, **{field.name: 1}))
        for field in fields(MoeShape)
    }
    yarn = Yarn(4.0, 4096, 32.0, 1.0, 1.0, True)
    by_hand: dict[str, object] = {"yarn": yarn, "drafter": DRAFTER}
    for field in fields(DeltaNetConfig):
        if field.name not in CHANGES_NO_STATE | {"feed_forward"}:
            changed = by_hand.get(field.name) or other(getattr(MOE, field.name))
            made[field.name] = replace(MOE, **{field.name: changed})
    return made


@pytest.mark.parametrize("field", sorted(other_models().keys() - WEIGHTS_SHOW - CHANGES_NO_STATE))
def test_a_config_that_makes_other_state_of_the_same_weights_is_another(field: str) -> None:
    assert contract_of(other_models()[field]) != contract_of(MOE)


@pytest.mark.parametrize("field", [field.name for field in fields(DrafterShape)])
def test_a_drafter_that_makes_other_pages_of_the_same_weights_is_another(field: str) -> None:
    """A proposal writes no page. So a block's length and its mask are a node's own."""
    by_hand = {"target_layers": (1, 2)}
    changed = by_hand.get(field) or other(getattr(DRAFTER, field))
    ours = replace(MOE, drafter=DRAFTER)
    theirs = replace(MOE, drafter=replace(DRAFTER, **{field: changed}))
    is_own = field in {"block", "mask_id"} or field in WEIGHTS_SHOW
    assert (contract_of(theirs) == contract_of(ours)) is is_own


def test_a_constant_counts_to_its_last_digit() -> None:
    near = replace(MOE, rope_theta=MOE.rope_theta * (1 + 1e-9))
    assert contract_of(near) != contract_of(MOE)


@pytest.mark.parametrize("field", sorted(mismatches()))
def test_a_field_that_differs_is_named_alone(field: str) -> None:
    ours, theirs = OURS.flat(), mismatches()[field].flat()
    names = ours.keys() | theirs.keys()
    assert {name for name in names if ours.get(name) != theirs.get(name)} == {field}


async def test_every_mismatch_is_refused_at_connect_by_name() -> None:
    async with nodes() as both:
        await both.connected()
        ours = both.client.links[0]._contract.flat()
        for field, theirs in mismatches().items():
            if field != "tensor_parallel":
                assert await differing(both, theirs.flat()) == {field}
            if field not in ours:
                continue
            absent = {name: value for name, value in ours.items() if name != field}
            assert await differing(both, absent) == {field}, "an older version lacks it"
        newer = {**ours, "wire_compression": "zstd"}
        assert await differing(both, newer) == {"wire_compression"}
        assert await differing(both, ours, transport="carrier pigeon") == {"transport"}
        assert await differing(both, {}) == set(ours)
        assert STRANGER not in both.service.receivers, "a refused node was connected"
        # Nodes of any numbers of ranks may meet.
        assert await differing(both, mismatches()["tensor_parallel"].flat()) == set()
        assert await differing(both, ours) == set()
        assert STRANGER in both.service.receivers
