"""Every published format, by `tasuki quantise`. Loaded weights equal the formats' definitions bit
by bit, for every layout of experts, scales and parts."""

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from tasuki.cli import main as cli
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.families.qwen3_5.weights import ModelWeights
from tasuki.model.forward import Batch
from tasuki.model.named_checkpoints import embedded_model
from tasuki.model.ops.linear.reference import product
from tasuki.model.quantise.checkpoint import RECIPES, fp8_block, nvfp4_modelopt, quantise_folder
from tasuki.model.weights.copied_files import CopiedFile, CopiedTensors
from tasuki.model.weights.layers import matrices
from tasuki.model.weights.matrix import WHOLE, Kind, Matrix, Part, WeightsError
from tasuki.model.weights.quantised_segments import Fp8
from tasuki.model.weights.safetensors_files import StoredTensors
from tasuki.model.weights.safetensors_folder import Checkpoint, weights_digest
from tests.harness.goldens import Request, Workspace, final_hidden, logits_of, reference_dir
from tests.harness.qwen35 import load_config, load_weights

# Quantised checkpoints dequantised by the formats' definitions, a code at a time, without the
# tested code: numpy in float32, and decoders written from the bits.
Floats = NDArray[np.float32]
_E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def _e4m3(byte: int) -> float:
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    size = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if byte & 0x80 else size


_E4M3 = np.array([_e4m3(byte) for byte in range(256)], dtype=np.float32)


def _floats(tensor: Tensor) -> Floats:
    if tensor.dtype is torch.float8_e4m3fn:
        return _E4M3[tensor.view(torch.uint8).numpy()]
    found: Floats = tensor.float().numpy()
    return found


def _fp8(weight: Floats, scale: Floats) -> Floats:
    out, width = weight.shape
    result = np.empty_like(weight)
    blocks = scale.shape == (-(-out // 128), -(-width // 128))
    for row in range(out):
        for begin in range(0, width, 128):
            if blocks:
                own = scale[row // 128, begin // 128]
            else:
                own = scale.reshape(-1)[row if scale.size > 1 else 0]
            result[row, begin : begin + 128] = weight[row, begin : begin + 128] * own
    return result


def _nvfp4(packed: Tensor, groups: Floats) -> Floats:
    low, high = packed.numpy() & 15, packed.numpy() >> 4
    codes = np.stack([low, high], axis=-1).reshape(packed.shape[0], -1)
    sizes = np.array(_E2M1, dtype=np.float32)[codes & 7]
    signed: Floats = np.where(codes & 8, -sizes, sizes).astype(np.float32)
    signed *= np.repeat(groups, 16, axis=1)
    return signed


def dequantised(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the same checkpoint with whole weights in float32 under their plain names. REQUIRES:
    experts are split."""
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        beside = {
            other.removeprefix(f"{module}.weight"): value
            for other, value in tensors.items()
            if other.startswith(f"{module}.weight") and other != name
        }
        if "scale" in leaf:
            continue
        if tensor.dtype is torch.float8_e4m3fn:
            scale = beside["_scale_inv"] if "_scale_inv" in beside else beside["_scale"]
            whole[name] = torch.from_numpy(_fp8(_floats(tensor), _floats(scale)))
        elif tensor.dtype is torch.uint8:
            values = _nvfp4(tensor, _floats(beside["_scale"]))
            if "_scale_2" in beside:
                values *= _floats(beside["_scale_2"]).reshape(())
            else:
                values /= _floats(beside["_global_scale"]).reshape(())
            whole[f"{module}.weight"] = torch.from_numpy(values)
        else:
            whole[name] = tensor
    return whole


def write_dequantised(source: Path, target: Path) -> None:
    """Write the dequantised checkpoint. source: a folder with one file."""
    target.mkdir()
    save_file(dequantised(load_file(source / "model.safetensors")), target / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    (target / "config.json").write_text(json.dumps(config))


FILE = "model.safetensors"
EXPERTS = "model.language_model.layers.{}.mlp.experts."
EXPECTED = {
    "fp8": "fp8_block+plain",
    "fp8-channel": "fp8_channel+plain",
    "fp8-tensor": "fp8_tensor+plain",
    "nvfp4": "nvfp4+plain",
    "nvfp4-ct": "nvfp4+plain",
    "mixed": "fp8_tensor+nvfp4+plain",
}


def quantise(model: str, form: str, folder: Path) -> Path:
    flags = ["--model", str(reference_dir(model)), "--out", str(folder / form), "--format", form]
    assert cli.main(["quantise", *flags]) == 0
    return folder / form


def load(folder: Path, dtype: torch.dtype = torch.float32) -> ModelWeights:
    return load_weights(folder, load_config(folder), dtype)


def in_full(matrix: Matrix) -> Tensor:
    """Return the whole matrix, also of a stack."""
    if len(matrix.shape) == 2:
        return matrix.dequantised(torch.float32)
    return torch.stack([matrix[i].dequantised(torch.float32) for i in range(matrix.shape[0])])


def assert_equal_weights(got: ModelWeights, want: ModelWeights) -> None:
    pairs = [*zip(matrices(got), matrices(want), strict=True)]
    assert len(pairs) > 10
    for mine, other in pairs:
        assert mine.shape == other.shape
        assert torch.equal(in_full(mine), other.plain)


@pytest.mark.parametrize(
    ("model", "form"), [("small-dense", "fp8"), *(("small-moe", form) for form in RECIPES)]
)
def test_every_format_is_what_its_definition_says(model: str, form: str, tmp_path: Path) -> None:
    folder = quantise(model, form, tmp_path)
    write_dequantised(folder, tmp_path / "whole")
    got, want = load(folder), load(tmp_path / "whole")
    assert (got.formats, want.formats) == (EXPECTED[form], "plain")
    assert_equal_weights(got, want)
    config = load_config(folder)
    answers = []
    for weights in (got, want):
        request = Request(Workspace(Qwen35Model(config, weights)), 80)
        logits = request.forward([7, 3, 200, 41, 5, 99] * 3)
        answers.append((logits, request.greedy(logits, 8)))
    torch.testing.assert_close(answers[0][0], answers[1][0], atol=1e-3, rtol=0)
    assert answers[0][1] == answers[1][1]
    # Stored, codes take the bytes; nothing of a quantised module is kept whole beside them.
    quantised = [matrix for matrix in matrices(got) if Kind.PLAIN not in matrix.kinds]
    assert sum(m.nbytes for m in quantised) < 0.35 * sum(in_full(m).nbytes for m in quantised)


@pytest.mark.parametrize("form", ["fp8", "fp8-channel", "nvfp4-ct", "mixed"])
def test_quantising_keeps_most_of_every_weight(form: str, tmp_path: Path) -> None:
    """The comparison is with the plain checkpoint, so equal errors in a codec and its reader
    show."""
    got = load(quantise("small-moe", form, tmp_path))
    plain = load(reference_dir("small-moe"))
    for mine, whole in zip(matrices(got), matrices(plain), strict=True):
        error = (in_full(mine) - whole.plain).norm() / whole.plain.norm()
        assert error < (0.12 if Kind.NVFP4 in mine.kinds else 0.04)


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    tensors = load_file(folder / FILE)
    save_file({name: t.contiguous() for name, t in change(tensors).items()}, folder / FILE)


def fused(tensors: dict[str, Tensor], spell: Callable[[str, str], str]) -> dict[str, Tensor]:
    """Return experts as one tensor of each kind. spell: makes a name from (projection, rest after
    `weight`)."""
    split = {name: tensor for name, tensor in tensors.items() if ".mlp.experts." in name}
    made = {name: tensor for name, tensor in tensors.items() if name not in split}
    for layer in range(4):
        stem = EXPERTS.format(layer)
        for name in [n for n in split if n.startswith(f"{stem}0.")]:
            projection, suffix = name.removeprefix(f"{stem}0.").split(".weight")
            parts = [split[f"{stem}{i}.{projection}.weight{suffix}"] for i in range(8)]
            stacked = torch.stack(parts)
            if projection == "down_proj":
                made[stem + spell(projection, suffix)] = stacked
            elif projection == "gate_proj":
                ups = [split[f"{stem}{i}.up_proj.weight{suffix}"] for i in range(8)]
                scalar = stacked.ndim == 1
                both = [stacked, torch.stack(ups)]
                whole = torch.stack(both, 1) if scalar else torch.cat(both, 1)
                made[stem + spell("gate_up_proj", suffix)] = whole
    return made


SPELLINGS: dict[str, Callable[[str, str], str]] = {
    "X_scale": lambda projection, suffix: projection + suffix,
    "X_weight_scale": lambda projection, suffix: (
        projection + (f"_weight{suffix}" if suffix else "")
    ),
    "X.weight_scale": lambda projection, suffix: f"{projection}.weight{suffix}",
}


@pytest.mark.parametrize(
    ("form", "spelling"),
    [
        ("fp8-channel", "X_scale"),
        ("fp8-tensor", "X_weight_scale"),
        ("nvfp4", "X_weight_scale"),
        ("nvfp4", "X.weight_scale"),
        ("nvfp4-ct", "X_scale"),
    ],
)
def test_fused_experts_equal_split_ones(form: str, spelling: str, tmp_path: Path) -> None:
    folder = quantise("small-moe", form, tmp_path)
    split = load(folder)
    rewrite(folder, lambda tensors: fused(tensors, SPELLINGS[spelling]))
    for mine, other in zip(matrices(load(folder)), matrices(split), strict=True):
        assert torch.equal(in_full(mine), in_full(other))


def test_fused_fp8_blocks_go_over_gate_and_up(tmp_path: Path) -> None:
    """Their grid covers the fused rows: 64 of gate and up are in one block."""
    folder = quantise("small-moe", "fp8", tmp_path)
    plain = load_file(reference_dir("small-moe") / FILE)
    name = EXPERTS.format(0) + "gate_up_proj"
    made = [fp8_block(expert) for expert in plain[name]]

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        whole = fused(tensors, SPELLINGS["X_scale"])
        for layer in range(4):
            del whole[EXPERTS.format(layer) + "gate_up_proj_scale_inv"]
            stem = EXPERTS.format(layer) + "gate_up_proj"
            experts = [fp8_block(expert) for expert in plain[stem]]
            whole[stem] = torch.stack([expert["weight"] for expert in experts])
            scales = torch.stack([expert["weight_scale_inv"] for expert in experts])
            whole[f"{stem}_scale_inv"] = scales
        return whole

    rewrite(folder, change)
    mlp = load(folder).layers[0].mlp
    got = vars(mlp)["gate_up"]
    assert got.kinds == {Kind.FP8_BLOCK} and got.shape == (8, 64, 64)
    for expert, codes in enumerate(made):
        want = codes["weight"].float() * codes["weight_scale_inv"].float()
        assert torch.equal(got[expert].dequantised(torch.float32), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_block_scales_of_every_dtype_are_read_as_they_are(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = quantise("small-dense", "fp8", tmp_path)

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: (tensor.float() * 1.0123).to(dtype) if name.endswith("_scale_inv") else tensor
            for name, tensor in tensors.items()
        }

    rewrite(folder, change)
    write_dequantised(folder, tmp_path / "whole")
    assert_equal_weights(load(folder), load(tmp_path / "whole"))


def test_experts_listed_by_projection(tmp_path: Path) -> None:
    """ModelOpt splits fused experts in this way: experts.gate_proj.0.weight."""
    folder = quantise("small-moe", "nvfp4", tmp_path)
    split = load(folder)

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        made = {}
        for name, tensor in tensors.items():
            front, found, rest = name.partition(".mlp.experts.")
            if found:
                index, projection, leaf = rest.split(".")
                name = f"{front}{found}{projection}.{index}.{leaf}"
            made[name] = tensor
        return made

    rewrite(folder, change)
    for mine, other in zip(matrices(load(folder)), matrices(split), strict=True):
        assert torch.equal(in_full(mine), in_full(other))


def test_what_decays_the_state_stays_whole_or_is_dequantised_at_load(tmp_path: Path) -> None:
    """The tensors are b and a of a community checkpoint with everything quantised, its router
    too."""
    folder = quantise("small-moe", "fp8", tmp_path)
    stem = "model.language_model.layers.0."

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        for module in ("linear_attn.in_proj_b", "linear_attn.in_proj_a", "mlp.gate"):
            made = fp8_block(tensors.pop(f"{stem}{module}.weight"))
            tensors |= {f"{stem}{module}.{leaf}": tensor for leaf, tensor in made.items()}
        return tensors

    rewrite(folder, change)
    write_dequantised(folder, tmp_path / "whole")
    got, want = load(folder), load(tmp_path / "whole")
    assert_equal_weights(got, want)
    router = vars(got.layers[0].mlp)["router"]
    assert torch.equal(router, vars(want.layers[0].mlp)["router"])


@pytest.mark.parametrize("form", ["fp8", "fp8-channel", "fp8-tensor", "nvfp4", "nvfp4-ct"])
def test_a_part_is_what_the_whole_matrix_has_there(form: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    recipe = RECIPES[form]
    codec = next(iter(recipe.modules))[1]
    made = codec(torch.randn(300, 384))
    name = "layers.0.mlp.up_proj"
    tensors = {f"model.{name}.{leaf}": tensor for leaf, tensor in made.items()}
    save_file(tensors | {"model.embed_tokens.weight": torch.zeros(1, 1)}, tmp_path / FILE)
    with Checkpoint(tmp_path) as source:

        def read(*part: slice) -> Tensor:
            found = source.matrix(f"{name}.weight", (300, 384), torch.float32, part)
            return found.dequantised(torch.float32)

        whole = read()
        rows, columns = slice(128, 256), slice(128, 384)
        assert torch.equal(read(rows), whole[rows])
        assert torch.equal(read(slice(None), columns), whole[:, columns])
        assert torch.equal(read(slice(256, 300), columns), whole[256:300, columns])
        if form == "fp8":
            for cut in ((slice(64, 128),), (slice(0, 64),), (slice(None), slice(0, 200))):
                with pytest.raises(WeightsError, match=r"up_proj\.weight_scale_inv is for 128"):
                    read(*cut)


@pytest.mark.parametrize("form", ["fp8", "nvfp4"])
def test_a_product_dequantises_a_few_rows_at_a_time(form: str) -> None:
    rows, width = 5000, 4096
    weight = torch.randn(rows, width, generator=torch.Generator().manual_seed(1)).bfloat16()
    if form == "fp8":
        made = fp8_block(weight)
        scales = made["weight_scale_inv"].float()
        matrix = Matrix((Fp8(made["weight"], scales, 128, 128, Kind.FP8_BLOCK),))
    else:
        from tasuki.model.weights.quantised_segments import NvFp4

        made = nvfp4_modelopt(weight)
        one = made["weight_scale_2"].reshape(1)
        matrix = Matrix((NvFp4(made["weight"], made["weight_scale"], one, torch.ones(1)),))
    largest = max(piece.nbytes for piece in matrix.pieces(torch.float32))
    assert largest <= 2**24 < rows * width * 4 / 4
    x = torch.randn(3, width)
    want = x @ matrix.dequantised(torch.float32).t()
    torch.testing.assert_close(product(x, matrix), want, atol=1e-3, rtol=1e-3)


def test_an_odd_scale_range_is_exact() -> None:
    """Scales from 2^-20 to 2^10, the smallest codes, and blocks of zeros."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(130).view(130, 256)
    codes[codes & 0x7F == 0x7F] = 1
    codes[128:] = 0
    scales = torch.tensor([[2.0**-20, 2.0**10], [0.0, 1.0]])
    segment = Fp8(codes.view(torch.float8_e4m3fn), scales, 128, 128, Kind.FP8_BLOCK)
    got = Matrix((segment,)).dequantised(torch.float32)
    want = codes.view(torch.float8_e4m3fn).float()
    want[:128, :128] *= 2.0**-20
    want[:128, 128:] *= 2.0**10
    assert torch.equal(got, want) and got[128:].eq(0).all()


@pytest.mark.parametrize("form", RECIPES)
def test_numbers_next_to_zero_have_codes_and_scales(form: str) -> None:
    """Their scales would otherwise be 0, or have no reciprocal."""
    weight = torch.zeros(130, 160)
    weight[:, ::3] = 2.0**-130
    for _, codec in RECIPES[form].modules:
        for tensor in codec(weight.bfloat16()).values():
            held = tensor.float()
            assert held.isfinite().all() and (tensor.itemsize == 1 or held.all())


def test_two_scales_of_an_expert_are_for_halves_of_its_rows(tmp_path: Path) -> None:
    name = "layers.0.mlp.experts.down_proj"
    for out in (32, 33):
        codes = torch.randint(0, 256, (3, out, 16)).byte()
        groups = torch.ones(3, out, 2).to(torch.float8_e4m3fn)
        tensors = {"": codes, "_scale": groups, "_scale_2": torch.ones(3, 2)}
        made = {f"model.{name}{suffix}": tensor for suffix, tensor in tensors.items()}
        save_file(made | {"model.embed_tokens.weight": torch.zeros(1, 1)}, tmp_path / FILE)
        (tmp_path / "config.json").write_text("{}")
        with Checkpoint(tmp_path) as source:
            if out % 2 == 0:
                found = source.matrix(name, (3, out, 32), torch.float32)
                assert found[0].dequantised(torch.float32).shape == (out, 32)
                continue
            with pytest.raises(WeightsError, match=r"tensor scale .*_scale_2 has \[3, 2\]"):
                source.matrix(name, (3, out, 32), torch.float32)


@pytest.mark.parametrize(("form", "most"), [("fp8", 0.005), ("mixed", 0.1)])
def test_a_trained_model_says_nearly_the_same(form: str, most: float, tmp_path: Path) -> None:
    """The measure is the mean divergence of its next token over a text outside its training
    data."""
    trained = embedded_model()
    quantise_folder(trained, tmp_path / form, RECIPES[form])
    text = (Path(__file__).parents[2] / "LICENSE").read_text()[:3000]
    tokens = Tokenizer.from_file(str(trained / "tokenizer.json")).encode(text).ids[:500]
    config = load_config(trained)
    likely = []
    for folder in (trained, tmp_path / form):
        model = Qwen35Model(config, load(folder))
        request = Request(Workspace(model, slabs=64), len(tokens))
        batch = Batch.pack([request.slice(tokens)])
        hidden = final_hidden(model, batch, request.workspace.arena)
        likely.append(logits_of(model, hidden).log_softmax(-1))
    want, got = likely
    assert 0 < (want.exp() * (want - got)).sum(-1).mean() < most
    assert (want.argmax(-1) == got.argmax(-1)).float().mean() > 0.9


def test_two_formats_of_one_model_have_two_digests(tmp_path: Path) -> None:
    digests = {weights_digest(quantise("small-dense", form, tmp_path)) for form in RECIPES}
    assert len(digests) == len(RECIPES)


def test_shards_keep_their_files_and_other_files_come_along(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    tensors = load_file(reference_dir("small-dense") / FILE)
    where = {}
    for shard in range(3):
        mine = sorted(tensors)[shard::3]
        save_file({name: tensors[name] for name in mine}, source / f"model-{shard}.safetensors")
        where |= dict.fromkeys(mine, f"model-{shard}.safetensors")
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (source / "config.json").write_bytes(
        (reference_dir("small-dense") / "config.json").read_bytes()
    )
    (source / "chat_template.jinja").write_text("{{ messages }}")
    target = tmp_path / "made"
    assert cli.main(["quantise", "--model", str(source), "--out", str(target)]) == 0
    assert (target / "chat_template.jinja").read_text() == "{{ messages }}"
    one = quantise("small-dense", "fp8", tmp_path)
    for mine, other in zip(matrices(load(target)), matrices(load(one)), strict=True):
        assert torch.equal(in_full(mine), in_full(other))
    again = json.loads((target / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(again) == set(load_file(one / FILE))


def test_files_are_opened_once_and_read_from_the_first_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = quantise("small-moe", "fp8", tmp_path)
    tensors = load_file(folder / FILE)
    (folder / FILE).unlink()
    # As published: the embedding first, a file a layer, the head last.
    files = [f"model-{number}.safetensors" for number in range(6)]
    parts = ["embed_tokens", *(f".layers.{layer}." for layer in range(4))]
    left = dict(tensors)
    for file, part in zip(files, parts, strict=False):
        save_file({name: left.pop(name) for name in [*left] if part in name}, folder / file)
    save_file(left, folder / files[-1])
    opened: list[str] = []
    read: list[str] = []
    whole, stack = StoredTensors.read, StoredTensors.read_stack

    def counted(self: StoredTensors, name: str, part: Part = WHOLE) -> Tensor:
        read.append(name)
        return whole(self, name, part)

    def counted_stack(self: StoredTensors, names: Sequence[str]) -> Tensor:
        read.extend(names)
        return stack(self, names)

    class Counted(CopiedFile):
        def __init__(self, path: Path) -> None:
            opened.append(path.name)
            super().__init__(path)

    monkeypatch.setattr(StoredTensors, "read", counted)
    monkeypatch.setattr(StoredTensors, "read_stack", counted_stack)
    monkeypatch.setattr(CopiedTensors, "OPENS", Counted)
    load(folder)
    assert opened == files
    of = {name: file.name for file in folder.glob("*.safetensors") for name in load_file(file)}
    assert [file for file, _ in groupby(of[name] for name in read)] == files
    # The first of experts read as one tensor is inspected before.
    assert set(read) == set(tensors) and len(read) <= len(tensors) + 4 * 3 * 2


def test_quantise_refuses_what_is_there_and_what_is_quantised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = quantise("small-dense", "fp8", tmp_path)
    before = weights_digest(made)
    flags = ["quantise", "--model", str(reference_dir("small-dense")), "--out", str(made)]
    assert cli.main(flags) == 1
    assert "is there already" in capsys.readouterr().err
    assert weights_digest(made) == before
    assert cli.main(["quantise", "--model", str(made), "--out", str(tmp_path / "twice")]) == 1
    assert "is quantised already" in capsys.readouterr().err
    assert cli.main(["quantise", "--model", str(tmp_path), "--out", str(tmp_path / "twice")]) == 1
    assert "config.json: cannot be read" in capsys.readouterr().err
    (tmp_path / "twice.partial").mkdir()
    flags = ["quantise", "--model", str(reference_dir("small-dense"))]
    assert cli.main([*flags, "--out", str(tmp_path / "twice")]) == 1
    assert "twice.partial: is left of a run" in capsys.readouterr().err
    (tmp_path / "twice.partial").rmdir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fp8"]


@pytest.mark.parametrize(
    ("form", "weight", "named"),
    [
        ("nvfp4", torch.ones(4, 40), "40 columns has no whole groups of 16"),
        ("fp8", torch.full((4, 32), torch.inf), "is not finite"),
    ],
)
def test_a_weight_that_has_no_codes_is_named_and_leaves_nothing(
    form: str, weight: Tensor, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text("{}")
    save_file({"model.layers.0.mlp.up_proj.weight": weight}, source / FILE)
    flags = ["--model", str(source), "--out", str(tmp_path / "made"), "--format", form]
    assert cli.main(["quantise", *flags]) == 1
    told = capsys.readouterr().err
    assert "layers.0.mlp.up_proj.weight" in told and named in told
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
