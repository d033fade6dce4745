"""One tensor-parallel rank's part of a model: its heads and widths, and its slices of published
weights.

Pure. Attention is divided by heads. A GDN layer is divided by key heads with their value heads. A
feed-forward is divided by its inner width, and the head of the model by vocabulary.

Slices depend on the model's shape, the weight's name and the rank alone. Some tensors hold several
parts end to end, as [q | k | v] of a GDN layer. Each part is divided by itself. Published value
head j uses key head j // (value heads / key heads). So equal runs of neighbouring heads keep a key
head with its value heads. A query head's rows include its gate.
"""

import re
from dataclasses import dataclass, replace
from enum import Enum

from tasuki.model.config import DenseShape, ModelConfig, MoeShape
from tasuki.model.config_json import ModelConfigError
from tasuki.pycache.parts import share

from .matrix import Part, WeightsError


class UnfitSize(ModelConfigError):
    """Error: a model cannot be divided among this number of ranks. The message lists the possible
    numbers."""


class ExpertCut(Enum):
    """Division among ranks of the routed experts."""

    BY_WIDTH = "tensor"
    """Every rank has a part of each expert's inner width."""
    BY_EXPERT = "expert"
    """Every rank has some experts whole."""


@dataclass(frozen=True)
class Shard:
    """One tensor-parallel rank: number `rank` of `ranks` ranks, with its division of the
    experts."""

    rank: int
    ranks: int
    experts: ExpertCut = ExpertCut.BY_WIDTH

    def of(self, pieces: int) -> range:
        """Return this rank's range of `pieces` pieces, such as heads."""
        return share(pieces, self.ranks, self.rank)

    def part(self, config: ModelConfig) -> ModelConfig:
        """Return the config of this rank's part of the model, with its heads and widths. Raises
        UnfitSize."""
        check_fits(config, self)
        vocabulary = self.of(config.vocab) if cuts_vocabulary(config, self) else None
        return replace(
            config,
            query_heads=len(self.of(config.query_heads)),
            kv_heads=len(self.of(config.kv_heads)),
            key_heads=len(self.of(config.key_heads)),
            value_heads=len(self.of(config.value_heads)),
            feed_forward=self._feed_forward(config.feed_forward),
            head_rows=vocabulary,
        )

    def _feed_forward(self, shape: DenseShape | MoeShape) -> DenseShape | MoeShape:
        if isinstance(shape, DenseShape):
            return DenseShape(len(self.of(shape.intermediate)))
        shared = len(self.of(shape.shared_intermediate))
        if self.experts is ExpertCut.BY_EXPERT:
            return replace(shape, shared_intermediate=shared, held=self.of(shape.experts))
        width = len(self.of(shape.intermediate))
        return replace(shape, intermediate=width, shared_intermediate=shared)


def cuts_vocabulary(config: ModelConfig, shard: Shard) -> bool:
    """Return true if each rank has a part of the model's head. Return false if each rank has the
    whole head."""
    return shard.ranks > 1 and config.vocab % (shard.ranks * config.head_block) == 0


def fitting_sizes(config: ModelConfig, experts: ExpertCut) -> list[int]:
    """Return the possible numbers of ranks for the model, ascending. experts: division of the
    routed experts."""
    return [
        ranks
        for ranks in range(1, config.query_heads + 1)
        if _misfit(config, Shard(0, ranks, experts)) is None
    ]


def check_fits(config: ModelConfig, shard: Shard) -> None:
    """Raise UnfitSize if the model cannot be divided among the shard's number of ranks. A dense
    model cannot be divided by expert."""
    if shard.experts is ExpertCut.BY_EXPERT and isinstance(config.feed_forward, DenseShape):
        raise UnfitSize(
            "the model has no experts to share out: leave --expert-parallel out, and it is cut as "
            "every dense model is"
        )
    misfit = _misfit(config, shard)
    if misfit is None:
        return
    sizes = fitting_sizes(config, shard.experts)
    also = ""
    if shard.experts is ExpertCut.BY_WIDTH and isinstance(config.feed_forward, MoeShape):
        more = fitting_sizes(config, ExpertCut.BY_EXPERT)
        if shard.ranks in more:
            also = f", or these with --expert-parallel: {_listed(more)}"
    raise UnfitSize(
        f"the model cannot be shared out among {shard.ranks} ranks: {misfit}; give "
        f"--tensor-parallel one of {_listed(sizes)}{also}"
    )


def _misfit(config: ModelConfig, shard: Shard) -> str | None:
    """Return a text naming the first size not divisible among the ranks; None if the model can be
    divided."""
    ranks, shape = shard.ranks, config.feed_forward
    counts = {"query heads": config.query_heads, "key heads of GDN layers": config.key_heads}
    if isinstance(shape, DenseShape):
        counts["columns of the feed-forward"] = shape.intermediate
    else:
        counts["columns of the shared expert"] = shape.shared_intermediate
        if shard.experts is ExpertCut.BY_EXPERT:
            counts["experts"] = shape.experts
        else:
            counts["columns of an expert"] = shape.intermediate
    for name, count in counts.items():
        if count % ranks:
            return f"it has {count} {name}"
    if config.kv_heads % ranks and ranks % config.kv_heads:
        return f"it has {config.kv_heads} heads of keys and values"
    return None


def _listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes))


_EXPERT = re.compile(r"\.experts\.(?:(?:gate|up|down)_proj\.)?(\d+)\.")
_WHOLE = frozenset(
    {
        *("embed_tokens", "norm", "q_norm", "k_norm", "input_layernorm"),
        *("post_attention_layernorm", "gate", "shared_expert_gate", "fc"),
        *("pre_fc_norm_embedding", "pre_fc_norm_hidden"),
    }
)
"""Names of weights present whole on every rank. A norm covers one head or the whole residual
stream. Routers must choose alike on every rank. An embedding is only looked up."""


@dataclass(frozen=True)
class Cut:
    """One rank's part of a tensor: the `spans` of dimension `dim`, end to end. size: number of
    elements in the whole dimension."""

    dim: int
    size: int
    spans: tuple[range, ...]

    @property
    def count(self) -> int:
        """Return the number of elements in this rank's part of the dimension."""
        return sum(map(len, self.spans))

    @property
    def parts(self) -> tuple[Part, ...]:
        before = (slice(None),) * self.dim
        return tuple((*before, slice(span.start, span.stop)) for span in self.spans)

    def whole(self, share: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the whole tensor, given the shape of the rank's part."""
        return (*share[: self.dim], self.size, *share[self.dim + 1 :])


def cut_of(config: ModelConfig, shard: Shard, name: str) -> Cut | None:
    """Return this rank's part of a weight, by the weight's name; None: every rank has the whole
    weight. config: config of the whole model. REQUIRES: is_elsewhere() is false for the name.
    Raises WeightsError for an unknown name."""
    module, leaf = _module_and_leaf(name)
    head, keys, values = config.head_dim, config.key_heads, config.value_heads
    if leaf in _WHOLE or (leaf == "lm_head" and not cuts_vocabulary(config, shard)):
        return None
    if leaf == "lm_head":
        return _cut(shard, 0, (config.vocab, config.vocab))
    if module == "linear_attn":
        value = (values, values * config.value_dim)
        key = (keys, keys * config.key_dim)
        return {
            "in_proj_qkv": _cut(shard, 0, key, key, value),
            "conv1d": _cut(shard, 0, key, key, value),
            "in_proj_z": _cut(shard, 0, value),
            "in_proj_b": _cut(shard, 0, (values, values)),
            "in_proj_a": _cut(shard, 0, (values, values)),
            "A_log": _cut(shard, 0, (values, values)),
            "dt_bias": _cut(shard, 0, (values, values)),
            "out_proj": _cut(shard, 1, value),
        }.get(leaf) or _unknown(name)
    if module == "self_attn":
        query = config.query_heads
        kv = (config.kv_heads, config.kv_heads * head)
        return {
            "q_proj": _cut(shard, 0, (query, 2 * query * head)),
            "k_proj": _cut(shard, 0, kv),
            "v_proj": _cut(shard, 0, kv),
            "o_proj": _cut(shard, 1, (query, query * head)),
        }.get(leaf) or _unknown(name)
    shape = config.feed_forward
    if isinstance(shape, DenseShape):
        return _of_width(shard, leaf, shape.intermediate) or _unknown(name)
    if module == "shared_expert":
        return _of_width(shard, leaf, shape.shared_intermediate) or _unknown(name)
    return _of_experts(shape, shard, name, leaf)


def is_elsewhere(config: ModelConfig, shard: Shard, name: str) -> bool:
    """Return true if the tensor belongs to an expert of another rank. Return false if each rank has
    a part of every expert."""
    shape = config.feed_forward
    if shard.experts is not ExpertCut.BY_EXPERT or isinstance(shape, DenseShape):
        return False
    found = _EXPERT.search(name)
    return found is not None and int(found[1]) not in shard.of(shape.experts)


def _of_experts(shape: MoeShape, shard: Shard, name: str, leaf: str) -> Cut | None:
    fused = _EXPERT.search(name) is None
    if shard.experts is ExpertCut.BY_EXPERT:
        return _cut(shard, 0, (shape.experts, shape.experts)) if fused else None
    width = shape.intermediate
    if leaf == "gate_up_proj" and fused:
        return _cut(shard, 1, (width, width), (width, width))
    if leaf == "down_proj" and fused:
        return _cut(shard, 2, (width, width))
    return _of_width(shard, leaf, width) or _unknown(name)


def _of_width(shard: Shard, leaf: str, width: int) -> Cut | None:
    if leaf in ("gate_proj", "up_proj"):
        return _cut(shard, 0, (width, width))
    return _cut(shard, 1, (width, width)) if leaf == "down_proj" else None


def _cut(shard: Shard, dim: int, *segments: tuple[int, int]) -> Cut:
    """Return the rank's part of a tensor of several segments along `dim`. segments: (number of
    pieces, number of elements) of each segment."""
    spans, begin = [], 0
    for pieces, size in segments:
        each, own = size // pieces, shard.of(pieces)
        spans.append(range(begin + own.start * each, begin + own.stop * each))
        begin += size
    return Cut(dim, begin, tuple(spans))


def _module_and_leaf(name: str) -> tuple[str, str]:
    """Return the name of the tensor's module, such as self_attn, and the weight's name in it."""
    plain = _EXPERT.sub(lambda found: found[0].replace(f".{found[1]}.", "."), name)
    parts = plain.removesuffix(".weight").split(".")
    return parts[-2] if len(parts) > 1 else "", parts[-1]


def _unknown(name: str) -> Cut:
    raise WeightsError(
        f"tensor {name} is of no kind that can be shared out among ranks; give --tensor-parallel 1"
    )
