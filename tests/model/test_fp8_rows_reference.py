"""The twin of Hopper's product of e4m3 codes has sums that an H200 returned."""

import pytest
import torch

from tasuki.model.ops.linear.fp8_rows_reference import block_sums


def codes_of(text: str) -> torch.Tensor:
    """Return e4m3 codes [1, n] written as hexadecimal bytes."""
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8).view(torch.float8_e4m3fn)[
        None
    ]


@pytest.mark.parametrize(
    ("codes", "weights", "found"),
    [
        (
            "008000800080000000000000800080000d03050800008480820207038f820381",
            "5adcdcc8694ab4de4952ccda62605ccddbdbe0562956ccd85a625658af56d644",
            -0.49993896484375,
        ),
        (
            "8004008188098482098507848383818103040180840104838400010482800486",
            "515b5856da4eddc19bc35450d0d15f4258d65b5fd4593c534cd8585f526356d5",
            1.4998779296875,
        ),
        (
            "060008068884808401000200820309027e7479eafcf47172d36261f96868fa6e0f13050f9a099c15"
            "0000969e950095910000008080808080000080808000000000808000808080008080000080008000"
            "00828081810201010180818001000382",
            "c1d74d5b596449c652dada3bc35c5bcd4d64dbc5b9cbc4c13dbdd94bc1e35a63c4ce51cd4cd2d445"
            "d4cc5eccc1df5aba24d4d7d96040485ed9e144b9e3dd61d54dcabcdf5dd2d258da48d8514fd4d5d6"
            "e15d43d95ddd4fd9ddd6dd5254d9d499",
            -0.363983154296875,
        ),
    ],
    ids=["one", "positive", "three-instructions"],
)
def test_a_zero_is_never_the_largest_product(codes: str, weights: str, found: float) -> None:
    """A zero beside the largest weight would cut one more bit of the other products."""
    assert block_sums(codes_of(codes), codes_of(weights)).item() == found


def test_zeros_add_up_to_zero() -> None:
    zeros = torch.zeros(2, 128, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert torch.equal(block_sums(zeros, zeros), torch.zeros(2, 2))
