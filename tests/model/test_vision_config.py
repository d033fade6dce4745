"""Configs of towers and processors: published values, and refusals that name the field."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tasuki.model.config_json import ConfigFields, ModelConfigError
from tasuki.model.vision.config import PictureTokens, VisionConfig
from tasuki.model.vision.processor import ClipRules, PixelRules, Size

VISION: dict[str, Any] = {
    "model_type": "qwen3_5_vision",
    "depth": 27,
    "hidden_size": 1152,
    "num_heads": 16,
    "intermediate_size": 4304,
    "out_hidden_size": 4096,
    "hidden_act": "gelu_pytorch_tanh",
    "in_channels": 3,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [],
}
TEXT: dict[str, Any] = {
    "hidden_size": 4096,
    "vocab_size": 248320,
    "rope_parameters": {
        "rope_type": "default",
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    },
}
OUTER: dict[str, Any] = {
    "model_type": "qwen3_5",
    "text_config": TEXT,
    "vision_config": VISION,
    "vision_start_token_id": 248053,
    "vision_end_token_id": 248054,
    "image_token_id": 248056,
    "video_token_id": 248057,
}
PROCESSOR: dict[str, Any] = {
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "image_processor_type": "Qwen2VLImageProcessorFast",
}
VIDEO: dict[str, Any] = PROCESSOR | {"fps": 2, "min_frames": 4, "max_frames": 768}


def config() -> VisionConfig:
    found = VisionConfig.from_dict(OUTER)
    assert found is not None
    return found


def fields(values: dict[str, Any]) -> ConfigFields:
    return ConfigFields(values, "here")


def test_published_tower() -> None:
    found = config()
    assert (found.depth, found.heads, found.head_dim, found.side) == (27, 16, 72, 48)
    assert (found.patch_values, found.merged, found.norm_eps) == (1536, 4, 1e-6)
    assert found.rope_theta == 10000.0 and found.rotary_sections == (11, 11, 10)
    assert found.tokens == PictureTokens(248053, 248054, 248056, 248057)
    assert "16 heads of base 10000.0" in found.constants


@pytest.mark.parametrize("kind", ["qwen3_5", "qwen3_5_vision", "qwen3_5_moe_vision"])
def test_every_published_type_is_read(kind: str) -> None:
    raw = OUTER | {"vision_config": VISION | {"model_type": kind}}
    assert VisionConfig.from_dict(raw) == config()


@pytest.mark.parametrize("vision", [None, {}])
def test_text_checkpoints_have_no_tower(vision: object) -> None:
    assert VisionConfig.from_dict(OUTER | {"vision_config": vision}) is None
    assert VisionConfig.from_dict(TEXT) is None


@pytest.mark.parametrize(
    "change",
    [{"rope_parameters": None}, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}],
)
def test_missing_sections_are_those_of_published_models(change: dict[str, Any]) -> None:
    assert VisionConfig.from_dict(OUTER | {"text_config": TEXT | change}) == config()


def test_rope_parameters_give_the_base() -> None:
    rope = {"rope_type": "axial", "rope_theta": 500.0}
    found = VisionConfig.from_dict(OUTER | {"vision_config": VISION | {"rope_parameters": rope}})
    assert found is not None and found.rope_theta == 500.0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_type": "qwen3_vl"}, "model_type is 'qwen3_vl'"),
        ({"depth": 0}, "depth is 0"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_heads": 7}, "num_heads cuts hidden_size 1152 into 7 heads"),
        ({"num_heads": 64}, "num_heads cuts hidden_size 1152 into 64 heads"),
        ({"out_hidden_size": 2048}, "out_hidden_size is 2048, the language model's width is 4096"),
        ({"hidden_act": "silu"}, "hidden_act is 'silu'; only 'gelu_pytorch_tanh'"),
        ({"in_channels": 1}, "in_channels is 1"),
        ({"patch_size": [16, 16]}, "patch_size is [16, 16]"),
        ({"temporal_patch_size": True}, "temporal_patch_size is True"),
        ({"num_position_embeddings": 2300}, "num_position_embeddings is 2300, not a square"),
        ({"deepstack_visual_indexes": [8, 16]}, "deepstack_visual_indexes is [8, 16]"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.rope_type is 'yarn'"),
    ],
)
def test_refusals_name_the_field_of_the_tower(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelConfigError, match=re.escape(f"here: vision_config.{field}")) as caught:
        VisionConfig.from_dict(OUTER | {"vision_config": VISION | change}, "here")
    assert "; " in str(caught.value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"vision_start_token_id": None}, "vision_start_token_id is missing"),
        ({"image_token_id": 248320}, "image_token_id is 248320; use an id below 248320"),
        ({"image_token_id": "pad"}, "image_token_id is 'pad'"),
        ({"video_token_id": 248056}, "video_token_id is 248056, another field's id"),
        ({"vision_config": 3}, "vision_config is not an object"),
        (
            {"text_config": TEXT | {"rope_parameters": {"mrope_section": [16, 16]}}},
            "text_config.rope_parameters.mrope_section is [16, 16]",
        ),
        (
            {"text_config": TEXT | {"rope_parameters": {"mrope_interleaved": False}}},
            "text_config.rope_parameters.mrope_interleaved is False; only True",
        ),
    ],
)
def test_refusals_name_the_field_of_the_checkpoint(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelConfigError, match=re.escape(f"here: {field}")):
        VisionConfig.from_dict(OUTER | change, "here")


def test_published_processor() -> None:
    rules = PixelRules.of(fields(PROCESSOR), config())
    assert (rules.least, rules.most, rules.factor) == (65536, 16777216, 32)
    assert rules.mean == rules.deviation == (0.5, 0.5, 0.5)
    clip = ClipRules.of(fields(VIDEO), config())
    assert (clip.fps, clip.fewest_frames, clip.most_frames, clip.frame_tokens) == (2, 4, 768, None)
    capped = ClipRules.of(fields(VIDEO | {"cap_pixels_per_frame": True}), config())
    assert capped.frame_tokens == 768


def test_old_names_of_limits_take_precedence() -> None:
    rules = PixelRules.of(fields(PROCESSOR | {"min_pixels": 1024, "max_pixels": 4096}), config())
    assert (rules.least, rules.most) == (1024, 4096)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"patch_size": 14}, "patch_size is 14, the tower's is 16"),
        ({"merge_size": 1}, "merge_size is 1, the tower's is 2"),
        ({"temporal_patch_size": None}, "temporal_patch_size is missing"),
        ({"size": {"height": 224, "width": 224}}, "size.shortest_edge is missing"),
        ({"size": {"shortest_edge": 9, "longest_edge": 8}}, "size.shortest_edge is 9, above 8"),
        ({"size": 224}, "size is not an object"),
        ({"min_pixels": 0}, "min_pixels is 0"),
        ({"do_resize": False}, "do_resize is False; only True"),
        ({"do_normalize": False}, "do_normalize is False; only True"),
        ({"resample": 2}, "resample is 2; only 3"),
        ({"rescale_factor": 1.0}, "rescale_factor is not 1/255"),
        ({"image_mean": [0.5, 0.5]}, "image_mean is [0.5, 0.5]"),
        ({"image_std": [0.5, 0.5, 0]}, "image_std is [0.5, 0.5, 0]"),
        ({"image_std": None}, "image_std is None"),
    ],
)
def test_refusals_name_the_field_of_the_processor(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelConfigError, match=re.escape(f"here: {field}")):
        PixelRules.of(fields(PROCESSOR | change), config())


def test_rules_are_found_in_either_file(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"has no preprocessor_config\.json"):
        PixelRules.load(tmp_path, config())
    assert ClipRules.load(tmp_path, config()) is None
    joint = {"image_processor": PROCESSOR, "video_processor": VIDEO}
    (tmp_path / "processor_config.json").write_text(json.dumps(joint))
    rules, clip = PixelRules.load(tmp_path, config()), ClipRules.load(tmp_path, config())
    assert rules == PixelRules.of(fields(PROCESSOR), config())
    assert clip == ClipRules.of(fields(VIDEO), config())
    own = PROCESSOR | {"size": {"shortest_edge": 1024, "longest_edge": 2048}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(own))
    assert PixelRules.load(tmp_path, config()).most == 2048
    (tmp_path / "preprocessor_config.json").write_text("[]")
    with pytest.raises(ModelConfigError, match="holds no JSON object"):
        PixelRules.load(tmp_path, config())


def test_unreadable_configs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"config\.json: cannot be read"):
        VisionConfig.load(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelConfigError, match=r"config\.json: is nested too deep"):
        VisionConfig.load(tmp_path)


def test_clips_with_other_colours_than_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    other = VIDEO | {"image_mean": [0.5, 0.4, 0.5]}
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps(other))
    with pytest.raises(ModelConfigError, match=r"image_mean is \[0.5, 0.4, 0.5\], of images"):
        ClipRules.load(tmp_path, config())


def test_a_clip_s_frame_has_a_limit_of_its_own() -> None:
    rules, clip = PixelRules.of(fields(PROCESSOR), config()), ClipRules.of(fields(VIDEO), config())
    free, limited = (
        each.size(2, Size(1080, 1920), rules) for each in (clip, clip.limited(512 * 512))
    )
    assert free.pixels > 512 * 512 >= limited.pixels
    assert clip.limited(1).size(2, Size(1080, 1920), rules) == Size(32, 32)
