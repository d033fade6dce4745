"""The shape of a Kimi Linear model.

Does not know weights or memory. Immutable. Heads and widths of a config may be those of one rank
(cuts.py).
"""

from dataclasses import dataclass
from enum import Enum

from tasuki.model.config import ModelConfig
from tasuki.model.config_json import ModelConfigError
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout
from tasuki.pycache.parts import FP8_ROWS, Heads, LayerCache, Part, Segments, Whole

CONV = "conv"
SSM = "ssm"
LATENT = "latent"
"""Names of the parts of a layer's cache: convolution and recurrent states, and rows of latents."""


class Mixer(Enum):
    """Kind of a layer's mixer. KDA: the delta rule with a decay per key channel, and a state.
    LATENT: attention over latent rows in pages. The values name the kind in the config and in a
    cache layout."""

    KDA = "kda"
    LATENT = "latent"


@dataclass(frozen=True)
class LatentShape:
    """Shape of latent attention. heads: number of query heads. rank: width of the latent. key_dim,
    value_dim: width of a head's key and value made from the latent. shared_dim: width of the key
    common to all heads."""

    heads: int
    rank: int
    key_dim: int
    shared_dim: int
    value_dim: int

    @property
    def query_dim(self) -> int:
        """Return the width of one head's query: [key_dim | shared_dim]."""
        return self.key_dim + self.shared_dim

    @property
    def row(self) -> int:
        """Return the width of a token's cached row: [latent | shared key]."""
        return self.rank + self.shared_dim


@dataclass(frozen=True)
class ExpertShape:
    """Shape of a mixture of experts. experts: their number, `chosen` of them for each token.
    intermediate, shared: inner widths of one expert and of the shared one. scale: factor of the
    routed sum. held: range of experts stored on this rank; None: all."""

    experts: int
    chosen: int
    intermediate: int
    shared: int
    scale: float
    held: range | None = None

    @property
    def own(self) -> range:
        """Return the range of experts stored on this rank."""
        return range(self.experts) if self.held is None else self.held


@dataclass(frozen=True, kw_only=True)
class KimiConfig(ModelConfig):
    """Shape of a Kimi Linear model. mixers: kind of each layer. kda_heads, kda_dim: heads of a KDA
    layer, and their width. gate_rank: inner width of the two-step products for decay and gate.
    conv_width: taps of the convolution. dense_layers: number of first layers with a dense
    feed-forward of inner width `intermediate`. first_kda_head: number, among all ranks' KDA heads,
    of this rank's first one. Invariant: at least one layer of each kind."""

    mixers: tuple[Mixer, ...]
    kda_heads: int
    kda_dim: int
    gate_rank: int
    conv_width: int
    latent: LatentShape
    experts: ExpertShape
    dense_layers: int
    intermediate: int
    first_kda_head: int = 0

    @property
    def kda_width(self) -> int:
        """Return the number of channels of a KDA layer's queries; keys and values have as many."""
        return self.kda_heads * self.kda_dim

    @property
    def conv_channels(self) -> int:
        """Return the number of channels in the convolution of [q | k | v]."""
        return 3 * self.kda_width

    @property
    def layers(self) -> int:
        return len(self.mixers)

    @property
    def constants(self) -> str:
        latent, experts = self.latent, self.experts
        return (
            f"heads of {latent.key_dim} and {latent.shared_dim} shared, values of "
            f"{latent.value_dim}; norms beyond {self.norm_eps!r}; {experts.chosen} experts a token "
            f"times {experts.scale!r}"
        )

    def own_layout(self, kv_dtype: str, conv_dtype: str, ssm_dtype: str) -> CacheLayout:
        if kv_dtype == FP8_ROWS:
            raise ModelConfigError(
                "--kv-dtype is fp8, and latents are not kept as FP8 rows: leave --kv-dtype out"
            )
        shape, heads, dim = self.latent, self.kda_heads, self.kda_dim
        window = (self.conv_channels, self.conv_width - 1)
        kinds = {
            Mixer.KDA: LayerCache(
                Mixer.KDA.value,
                slot=(
                    Part(CONV, window, conv_dtype, Segments(((heads, dim),) * 3)),
                    Part(SSM, (heads, dim, dim), ssm_dtype, Heads(heads)),
                ),
            ),
            Mixer.LATENT: LayerCache(
                Mixer.LATENT.value,
                page=(Part(LATENT, (PAGE_TOKENS, shape.row), kv_dtype, Whole()),),
            ),
        }
        return CacheLayout(tuple(kinds[mixer] for mixer in self.mixers))
