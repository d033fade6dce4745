"""Contract of two nodes: all values required to be equal before bytes may move between them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from tasuki.pycache.layout import LAYERS, PAGE_TOKENS, CacheLayout
from tasuki.transfer.errors import TransferError
from tasuki.transfer.settings import Precision

WIRE_VERSION = 12
NOT_USED = "(not used)"
BF16_NAME = "bf16"
"""Name of activations of answers without quantisation."""
_TENSORS = "tensors_digest"
_ABSENT = {"step_activations": BF16_NAME}
"""Values of fields that older nodes lack, and that are left out with these values."""
_CARRIED = frozenset({"tensor_parallel"})
"""Required contract fields allowed to differ between the nodes."""
_FLAGS = {
    "step_activations": "--step-activations",
    "wire_kv": "--wire-kv",
    "wire_state": "--wire-state",
    "draft_layers": "--draft-layer",
}
"""Command-line flag setting each contract field, by field. A layout names those of its fields."""
_DTYPE, _STORED = "--dtype", "--kv-dtype"
"""Flags of the dtype, and of what follows it by default. If fields of both differ, only the first
is named as the fix."""


@dataclass(frozen=True)
class Difference:
    """Contract field with different values on the two nodes. ours: this node's value. theirs: the
    peer's."""

    field: str
    ours: str
    theirs: str


class ContractMismatch(TransferError):
    """Difference of two contracts: the nodes would interpret bytes differently. `differences` names
    every such field."""

    def __init__(
        self, differences: tuple[Difference, ...], flags: Mapping[str, str] = _FLAGS
    ) -> None:
        """flags: command-line flag of each field set by one."""
        self.differences = differences
        listed = "; ".join(f"{d.field}: ours {d.ours}, theirs {d.theirs}" for d in differences)
        super().__init__(f"contract mismatch: {listed}; {_fix(differences, flags)}")


def _fix(differences: tuple[Difference, ...], flags: Mapping[str, str]) -> str:
    of_flags = {flags.get(one.field, ""): one for one in differences}
    if _DTYPE in of_flags:
        of_flags.pop(_STORED, None)
    if not of_flags or "" in of_flags:
        return "start both nodes with one version, checkpoint and wire"
    # A layout names the stored dtypes, but --kv-dtype names fp8 and bf16.
    ((flag, cause), *more) = of_flags.items()
    unnamed = more or flag == _STORED or cause.field == LAYERS
    values = "" if unnamed else f", {cause.ours} or {cause.theirs}"
    named = [flag for flag in dict.fromkeys(flags.values()) if flag in of_flags]
    return f"give both nodes the same {' and '.join(named)}{values}"


@dataclass(frozen=True)
class Contract:
    """Contract of one node.

    weights_digest: hex digest of the weights in use. layout: layout of a single rank with all
    heads. tensor_parallel: number of ranks of one model; may differ. wire_kv, wire_state: names of
    the precision of sent KV and state. nixl, ucx: versions, if the transport uses them; another UCX
    version may read an address differently, and abort. constants: constants of the model, such as
    position angles, norm epsilon and experts per token; a config may change them with equal
    weights. weights_format: all kinds of storage in the weights; the digest differs with it, and
    this field shows the reason. step_activations: activations of answers in products with FP8
    weights, bf16 or fp8; pages and states depend on them. pictures: fields to be equal for prompts
    with pictures; empty: none are taken. Nodes with different ones pair for text. tensors_digest:
    hex digest of the weights by tensors (model/weights/tensor_tree.py). Nodes have the same weights
    if either digest is equal, whatever files they read. Kept bytes are named without it.
    """

    weights_digest: str
    layout: CacheLayout
    tensor_parallel: int = 1
    wire_version: int = WIRE_VERSION
    page_tokens: int = PAGE_TOKENS
    block_order: str = "head, key or value, token"
    draft_index: str = "embedded token"
    wire_kv: str = Precision.EXACT.value
    wire_state: str = Precision.EXACT.value
    nixl: str = NOT_USED
    ucx: str = NOT_USED
    constants: str = NOT_USED
    weights_format: str = NOT_USED
    step_activations: str = BF16_NAME
    pictures: Mapping[str, str] = field(default_factory=dict)
    tensors_digest: str = NOT_USED

    def flat(self) -> dict[str, str]:
        """Return all contract fields as texts by name, with the layout's fields. Activations in
        bf16 and an unused digest of tensors have no field, as on older nodes and in their kept
        folders."""
        apart = {"layout", "pictures"}
        if self.step_activations == BF16_NAME:
            apart.add("step_activations")
        if self.tensors_digest == NOT_USED:
            apart.add(_TENSORS)
        values = {f.name: str(getattr(self, f.name)) for f in fields(self) if f.name not in apart}
        values |= {field.name: field.text for field in self.layout.described}
        return values | {"draft_layers": str(self.layout.draft_layers)}

    @property
    def flags(self) -> dict[str, str]:
        """Return the command-line flag of each field set by one."""
        return {f.name: f.flag for f in self.layout.described if f.flag} | _FLAGS


def pictures_pair(ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    """Return True if prompts with pictures may go between two nodes with these fields."""
    return bool(ours) and ours == theirs


def diff(ours: dict[str, str], theirs: dict[str, str]) -> tuple[Difference, ...]:
    """Return the fields with different values in two flat contracts, or present in only one, sorted
    by name. _CARRIED fields may differ. Weights differ if neither their files nor their tensors are
    equal."""
    alike = {_TENSORS}
    if ours.get(_TENSORS, ours) == theirs.get(_TENSORS, theirs):
        alike.add("weights_digest")
    found = (
        Difference(
            name, *(each.get(name, _ABSENT.get(name, "(absent)")) for each in (ours, theirs))
        )
        for name in sorted((ours.keys() | theirs.keys()) - alike)
        if not (name in _CARRIED and name in ours and name in theirs)
    )
    return tuple(each for each in found if each.ours != each.theirs)
