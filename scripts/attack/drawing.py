"""Odd values, by hypothesis, the same for the same seed."""

import random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

NUMBERS = (-(2**63), -(2**31) - 1, -1, 0, 1, 2, 63, 64, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**64)
_TEXTS = (
    *("", "\0", "\ud800", "a" * 5000, "<|im_start|>", "\ue000 0 :", "../../etc/passwd", "%s%n"),
    *("application/json", "auto", "required", "system", "tool", "é" * 300, "\u202e", "null"),
)

odd_json: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from((*NUMBERS, 2**200, 1e308, -1e-308, 0.5)),
        st.floats(allow_nan=True, allow_infinity=True),
        st.sampled_from(_TEXTS),
        st.text(max_size=20),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(_TEXTS), inner, max_size=3)
    ),
    max_leaves=8,
)


def examples(strategy: st.SearchStrategy[Any], rng: random.Random, count: int) -> list[Any]:
    found: list[Any] = []

    @seed(rng.getrandbits(32))
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(drawn: Any) -> None:
        found.append(drawn)

    collect()
    return found


def messages(descriptor: Descriptor, depth: int = 3) -> st.SearchStrategy[Any]:
    """Return a strategy for messages of that type: each field is missing, likely or odd."""
    fields = {
        field.name: st.none() | _field(field, depth)
        for field in descriptor.fields
        if depth or field.message_type is None
    }
    build = GetMessageClass(descriptor)

    def filled(values: dict[str, Any]) -> Any:
        # Of a oneof the last one counts.
        message = build()
        for name, value in values.items():
            if value is not None:
                message.MergeFrom(build(**{name: value}))
        return message

    return st.fixed_dictionaries(fields).map(filled)


def _field(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return st.dictionaries(_field(key, depth), _field(value, depth), max_size=3)
    one = _single(field, depth)
    return st.lists(one, max_size=5) if field.is_repeated else one


def _single(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return messages(field.message_type, depth - 1)
    if field.enum_type is not None:
        return st.sampled_from([*field.enum_type.values_by_number, 77])
    match field.type:
        case FieldDescriptor.TYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.TYPE_STRING:
            return st.sampled_from([text for text in _TEXTS if "\ud800" not in text])
        case FieldDescriptor.TYPE_BYTES:
            return st.sampled_from((b"", b"\0", b"salt", b"\xff" * 4000)) | st.binary(max_size=64)
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            return st.sampled_from((0.0, 0.5, 1.0, -1.0, 1e30)) | st.floats(width=32)
    low, high = _RANGES[field.cpp_type]
    return st.sampled_from([number for number in NUMBERS if low <= number <= high]) | st.integers(
        max(low, 0), 200
    )


_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
