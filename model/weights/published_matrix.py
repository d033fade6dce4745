"""A checkpoint's matrix read as a segment (values with their scales). Only the existing tensors
decide its storage format.

    values     scale tensors of the same weight              format
    F32 BF16 F16                                             plain
    F8_E4M3    weight_scale_inv or weight_scale              fp8_block, fp8_channel, fp8_tensor, by
                                                             the scale's shape
    U8         weight_scale F8_E4M3, and weight_scale_2      nvfp4 (ModelOpt)
               (multiply) or weight_global_scale (divide)    nvfp4 (compressed-tensors)

Neither a list of module names nor `quant_method` decides, because both are wrong for some
checkpoints. Weights would be dropped then, or codes read as numbers. An unused scale is an error
naming the weight and the scale.
"""

from math import prod
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from .matrix import WHOLE, BlockCut, Kind, Part, Plain, Segment, WeightsError, bounds
from .quantised_segments import BLOCK, GROUP, Fp8, NvFp4
from .safetensors_files import Error
from .stacked_tensors import Companions

_PLAIN = frozenset({"F32", "BF16", "F16"})
_PUBLISHED_AGAIN = "fetch the checkpoint again, or convert it to BF16"


class MissingWeight(WeightsError):
    """Error: the checkpoint has no tensor for a weight's name, neither plain nor quantised."""


def is_coded(dtype: str) -> bool:
    """Return true if tensors of this safetensors dtype hold quantised codes of at most eight bits.
    Integers of other sizes are buffers, or belong to formats recognised by their tensor names."""
    return dtype.startswith(("F8", "F6", "F4", "U8", "I8"))


class ValueChecks(Protocol):
    """Checks of tensor values; see PendingChecks."""

    def finite(self, scales: Tensor, error: Error) -> None: ...

    def without_nan(self, codes: Tensor, error: Error) -> None: ...


class WeightTensors(Protocol):
    """The tensors of weights, by name; see StoredTensors. checks: checks of the values read."""

    @property
    def checks(self) -> ValueChecks: ...

    def __contains__(self, name: object) -> bool: ...

    def path(self, name: str) -> Path: ...

    def dtype(self, name: str) -> str: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str, part: Part = WHOLE) -> Tensor: ...

    def took(self, name: str) -> None: ...


class PublishedMatrix:
    """One weight of a checkpoint with its scales, or a stack of such weights. shape: the shape
    required by the config."""

    def __init__(self, tensors: WeightTensors, name: str, shape: tuple[int, ...]) -> None:
        """name: the weight's published name, with its prefix. Raises WeightsError if the tensor is
        missing."""
        self._tensors = tensors
        self._name = name
        self._shape = shape
        self._beside = Companions(name, tensors)
        values = self._beside.values()
        if values is None:
            raise MissingWeight(
                f"tensor {name} is missing; "
                "fetch all shards, or correct config.json if the model has no such layer"
            )
        self._values = values
        self._dtype = tensors.dtype(values)

    def segment(self, dtype: torch.dtype, part: Part, *, static_inputs: bool) -> Segment:
        """Return the weight, or a part of it, as a segment in its storage format. dtype: dtype for
        unquantised values. static_inputs: the config says that activations are quantised with
        scales from the file. Raises WeightsError."""
        if self._dtype in _PLAIN:
            return self._plain(dtype, part)
        if self._dtype == "F8_E4M3":
            segment: Segment = self._fp8(part)
        elif self._dtype == "U8":
            segment = self._nvfp4(part)
        else:
            raise self._error(
                f"has dtype {self._dtype}",
                "F32, BF16, F16, F8_E4M3 and U8 (NVFP4) are served; convert the checkpoint to BF16",
            )
        self._take_input_scales(wanted=static_inputs and segment.kind is not Kind.NVFP4)
        return segment

    @property
    def rows_together(self) -> int:
        """Return the number of neighbouring rows with one common scale; 1 unless the format is
        block-scaled FP8. A rank's part must not begin or end within such a block of rows. Raises
        WeightsError."""
        scale = self._beside.scale("_scale_inv") or self._beside.scale("_scale")
        if self._dtype != "F8_E4M3" or scale is None:
            return 1
        _, (rows, _), kind = self._grid_of(scale)
        return rows if kind is Kind.FP8_BLOCK else 1

    def _plain(self, dtype: torch.dtype, part: Part) -> Plain:
        self._check_shape(self._shape)
        for scale in self._beside.scales():
            raise self._error(
                f"has dtype {self._dtype}, and {scale} beside it is an unused scale",
                "remove the scale if the weight is whole, else quantise the weight",
            )
        return Plain(self._tensors.read(self._values, part).to(dtype))

    def _fp8(self, part: Part) -> Fp8:
        self._check_shape(self._shape)
        scale = self._beside.scale("_scale_inv") or self._beside.scale("_scale")
        if scale is None:
            raise self._without(self._beside.expected("_scale_inv"), "_scale")
        self._check_scale_dtype(scale, _PLAIN)
        scales, block, kind = self._grid_of(scale)
        grid = scales.shape[len(self._shape) - 2 :]
        values, taken = self._cut(part, scale, block, (grid[0], grid[1]), kind)
        return Fp8(
            self._without_nan(self._tensors.read(self._values, values), self._values),
            scales[taken].contiguous() if taken else scales,
            *block,
            kind,
        )

    def _grid_of(self, name: str) -> tuple[Tensor, tuple[int, int], Kind]:
        """Read the scale tensor `name`. Return its scales [..., rows, columns], the number of
        weight rows and columns under one scale, and the storage format. The shapes of weight and
        scales decide them."""
        *front, out, width = self._shape
        scales = self._finite(name)
        blocks = (-(-out // BLOCK), -(-width // BLOCK))
        shape = scales.shape
        if shape == (*front, *blocks):
            return scales, (BLOCK, BLOCK), Kind.FP8_BLOCK
        if shape in ((*front, out, 1), (*front, out)):
            return scales.view(*front, out, 1), (1, width), Kind.FP8_CHANNEL
        count = prod(front)
        if scales.numel() == count:
            return scales.reshape(*front, 1, 1), (out, width), Kind.FP8_TENSOR
        if scales.numel() == 1:
            return scales.expand(*front, 1, 1).contiguous(), (out, width), Kind.FP8_TENSOR
        if front and scales.numel() == 2 * count and out % 2 == 0:
            # Fused experts have one scale for the gate's rows and one for the rows of up.
            return scales.reshape(*front, 2, 1), (out // 2, width), Kind.FP8_TENSOR
        raise self._error(
            f"has shape {list(self._shape)}, and its scale {name} has {list(shape)}",
            f"blocks of {BLOCK} x {BLOCK} would have {[*front, *blocks]}, rows {[*front, out, 1]}, "
            f"one tensor {[*front]}; {_PUBLISHED_AGAIN}",
        )

    def _nvfp4(self, part: Part) -> NvFp4:
        *front, out, width = self._shape
        if width % GROUP:
            raise self._error(
                f"is NVFP4 with {width} columns, no multiple of {GROUP}", _PUBLISHED_AGAIN
            )
        self._check_shape((*front, out, width // 2))
        groups = self._beside.scale("_scale")
        if groups is None:
            raise self._without(self._beside.expected("_scale"))
        self._check_scale_dtype(groups, frozenset({"F8_E4M3"}))
        wanted = (*front, out, width // GROUP)
        if self._tensors.shape(groups) != wanted:
            raise self._error(
                f"has shape {list(self._shape)}, and its scale {groups} has "
                f"{list(self._tensors.shape(groups))}, not {list(wanted)}",
                _PUBLISHED_AGAIN,
            )
        multiplier, divisor = self._tensor_scales(front)
        values, taken = self._cut(part, groups, (1, GROUP), (out, width // GROUP), Kind.NVFP4)
        ranges = multiplier.shape[-1]
        if part:
            values = (*values[:-1], slice(values[-1].start // 2, -(-values[-1].stop // 2)))
            lead = (*values[: len(front)], self._range_of(values[-2], ranges, out))
            multiplier, divisor = multiplier[lead].contiguous(), divisor[lead].contiguous()
        packed = self._tensors.read(self._values, values)
        scales = self._without_nan(self._tensors.read(groups, taken), groups)
        return NvFp4(packed, scales, multiplier, divisor)

    def _tensor_scales(self, front: list[int]) -> tuple[Tensor, Tensor]:
        """Return the float32 multiplier and divisor of the whole tensor, each [*front, n] for n
        equal ranges of rows. One of the two is 1."""
        factor, divisor = self._beside.scale("_scale_2"), self._beside.scale("_global_scale")
        name = factor or divisor
        if name is None:
            raise self._without(self._beside.expected("_scale_2"), "_global_scale")
        self._check_scale_dtype(name, _PLAIN)
        found, count = self._finite(name), prod(front)
        if found.numel() == 1:
            found = found.reshape(1).expand(*front, 1).contiguous()
        elif front and found.numel() in (count, 2 * count if self._shape[-2] % 2 == 0 else count):
            found = found.reshape(*front, -1)
        else:
            raise self._error(
                f"has shape {list(self._shape)}, and its tensor scale {name} has "
                f"{list(found.shape)}",
                _PUBLISHED_AGAIN,
            )
        if name == divisor and not found.is_meta and (found == 0).any():
            raise self._error(f"is divided by {name}, which is 0", _PUBLISHED_AGAIN)
        ones = torch.ones_like(found)
        return (found, ones) if name == factor else (ones, found)

    def _range_of(self, rows: slice, ranges: int, out: int) -> slice:
        """Return the slice of the tensor's scales for these rows: all scales for all rows, else
        one. Each scale covers an equal range of the `out` rows. Raises WeightsError if the rows
        need several scales."""
        if (rows.start, rows.stop) == (0, out):
            return slice(0, ranges)
        first, last = (row * ranges // out for row in (rows.start, rows.stop - 1))
        if first != last:
            raise self._error(
                f"has {ranges} tensor scales", "it cannot be cut across the rows of two of them"
            )
        return slice(first, first + 1)

    def _cut(
        self, part: Part, scale: str, block: tuple[int, int], grid: tuple[int, int], kind: Kind
    ) -> tuple[Part, Part]:
        """Return the parts to read of the values and of the scales. Raises BlockCut if a block with
        one scale would be cut. Rows under a scale of the whole tensor may be divided: each part
        keeps the scale."""
        if not part:
            return WHOLE, WHOLE
        limits = bounds(part, self._shape)
        front = tuple(slice(*limit) for limit in limits[:-2])
        scales = []
        for (begin, end), size, unit, count in zip(
            limits[-2:], self._shape[-2:], block, grid, strict=True
        ):
            if count == 1:
                scales.append(slice(0, 1))
            elif kind is Kind.FP8_TENSOR and begin // unit == (end - 1) // unit:
                scales.append(slice(begin // unit, begin // unit + 1))
            elif begin % unit or (end % unit and end != size):
                error = self._error(
                    f"cannot be cut at [{begin}, {end}): each of {scale} is for {unit}",
                    "share the model among fewer ranks",
                )
                raise BlockCut(str(error), unit)
            else:
                scales.append(slice(begin // unit, -(-end // unit)))
        return tuple(slice(*limit) for limit in limits), (*front, *scales)

    def _take_input_scales(self, *, wanted: bool) -> None:
        found = list(self._beside.activation_scales())
        if wanted and not found:
            raise self._error(
                "is to have its inputs quantised by a scale of the file (activation_scheme "
                f"static), and {self._name.removesuffix('.weight')}.input_scale is missing",
                _PUBLISHED_AGAIN,
            )
        for name in found:
            self._tensors.took(name)

    def _finite(self, name: str) -> Tensor:
        scales = self._tensors.read(name).to(torch.float32)
        self._tensors.checks.finite(
            scales,
            lambda: self._error(
                f"has a scale {name} that is not finite, or is negative", _PUBLISHED_AGAIN
            ),
        )
        return scales

    def _without_nan(self, values: Tensor, name: str) -> Tensor:
        self._tensors.checks.without_nan(
            values, lambda: self._error(f"is damaged: {name} holds NaN", _PUBLISHED_AGAIN)
        )
        return values

    def _check_shape(self, wanted: tuple[int, ...]) -> None:
        got = self._tensors.shape(self._values)
        if got != wanted:
            raise self._error(
                f"has shape {list(got)}, config.json wants {list(wanted)}",
                "take both files from the same model",
            )

    def _check_scale_dtype(self, name: str, allowed: frozenset[str]) -> None:
        got = self._tensors.dtype(name)
        if got not in allowed:
            raise self._error(
                f"has a scale {name} of dtype {got}; {', '.join(sorted(allowed))} is read there",
                "convert the checkpoint to BF16",
            )

    def _without(self, scale: str, other: str = "") -> WeightsError:
        also = f" (or ...{other})" if other else ""
        return self._error(
            f"has dtype {self._dtype} and its scale {scale}{also} is missing",
            "its values mean nothing without it: " + _PUBLISHED_AGAIN,
        )

    def _error(self, what: str, fix: str) -> WeightsError:
        path = self._tensors.path(self._values)
        return WeightsError(f"{path}: tensor {self._values} {what}; {fix}")
