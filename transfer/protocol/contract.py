"""Contract of two nodes: all values required to be equal before bytes may move between them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout, LayerKind
from tasuki.transfer.errors import TransferError
from tasuki.transfer.settings import Precision

WIRE_VERSION = 12
NOT_USED = "(not used)"
BF16_NAME = "bf16"
"""Name of activations of answers without quantisation."""
_CARRIED = frozenset({"tensor_parallel"})
"""Required contract fields allowed to differ between the nodes."""
_FLAGS = {
    "conv_dtype": "--dtype",
    "kv_dtype": "--kv-dtype",
    "ssm_dtype": "--ssm-dtype",
    "step_activations": "--step-activations",
    "wire_kv": "--wire-kv",
    "wire_state": "--wire-state",
    "draft_layers": "--draft-layer",
}
"""Command-line flag setting each contract field, by field."""
OF_DTYPE = ("conv_dtype", "carry_dtype")
"""Layout fields set by the engine's --dtype."""
_OF_DTYPE = frozenset({"carry_dtype", "kv_dtype"})
"""Contract fields derived from the dtype. If they differ together with it, only --dtype is named as
the fix."""


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

    def __init__(self, differences: tuple[Difference, ...]) -> None:
        self.differences = differences
        listed = "; ".join(f"{d.field}: ours {d.ours}, theirs {d.theirs}" for d in differences)
        super().__init__(f"contract mismatch: {listed}; {_fix(differences)}")


def _fix(differences: tuple[Difference, ...]) -> str:
    named = {difference.field: difference for difference in differences}
    causes = named.keys() - (_OF_DTYPE if "conv_dtype" in named else set())
    if not causes or not causes <= _FLAGS.keys():
        return "start both nodes with one version, checkpoint and wire"
    flags = [flag for field, flag in _FLAGS.items() if field in causes]
    values = ""
    # A layout names the stored dtypes, but the flags name fp8 and bf16 for keys and values.
    if len(causes) == 1 and "kv_dtype" not in causes:
        (cause,) = (named[field] for field in causes)
        values = f", {cause.ours} or {cause.theirs}"
    return f"give both nodes the same {' and '.join(flags)}{values}"


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
    with pictures; empty: none are taken. Nodes with different ones pair for text.
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

    def flat(self) -> dict[str, str]:
        """Return all contract fields as texts by name, with the layout's fields; layer_kinds leaves
        out draft layers."""
        apart = {"layout", "pictures"}
        values = {f.name: str(getattr(self, f.name)) for f in fields(self) if f.name not in apart}
        for each in fields(self.layout):
            values[each.name] = str(getattr(self.layout, each.name))
        kinds = [kind for kind in self.layout.layer_kinds if kind is not LayerKind.DRAFT]
        values["layer_kinds"] = ",".join(kind.value for kind in kinds)
        values["draft_layers"] = str(self.layout.draft_layers)
        return values


def pictures_pair(ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    """Return True if prompts with pictures may go between two nodes with these fields."""
    return bool(ours) and ours == theirs


def diff(ours: dict[str, str], theirs: dict[str, str]) -> tuple[Difference, ...]:
    """Return the fields with different values in two flat contracts, or present in only one, sorted
    by name. _CARRIED fields may differ."""
    names = sorted(ours.keys() | theirs.keys())
    missing = "(absent)"
    return tuple(
        Difference(name, ours.get(name, missing), theirs.get(name, missing))
        for name in names
        if ours.get(name) != theirs.get(name)
        and not (name in _CARRIED and name in ours and name in theirs)
    )
