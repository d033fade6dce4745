"""What an answer has to follow, as chats, completions and Responses take it: the schemas of what
server/openai/answer_format.py reads. Pure."""

from tasuki.server.text.grammars.asked_grammar import MAX_TEXTS

from .shapes import (
    ANY,
    NULL,
    STRING,
    Fields,
    Schema,
    either,
    nonnull_array,
    object_of,
    one_of,
    or_null,
)

SCHEMA: Schema = either({"type": ["object", "string"]}, one_of([True]))
"""A JSON Schema, or the text of one."""
_SOURCE: Schema = {**STRING, "minLength": 1}
_TAG_TYPE: Schema = one_of([None, "structural_tag"])
_NONEMPTY: Schema = nonnull_array({**STRING, "minLength": 1}, least=1, most=MAX_TEXTS)
_CHOICES: Schema = either(_NONEMPTY, nonnull_array(most=0), NULL)
_WITH_SCHEMA: Schema = object_of({"schema": SCHEMA}, ["schema"])


def _of_type(kind: str, **fields: Schema) -> Schema:
    return object_of({"type": one_of([kind]), **fields}, ["type", *fields])


_TAGS: Fields = {
    "structures": nonnull_array({"type": "object"}, least=1),
    "triggers": nonnull_array(_SOURCE, least=1),
}
_TAG: Schema = either(
    STRING,
    object_of({"type": _TAG_TYPE, "format": {"type": "object"}}, ["format"]),
    object_of({"type": _TAG_TYPE, **_TAGS}, list(_TAGS)),
)
FREE_TEXT: Schema = _of_type("text")
RESPONSE_FORMAT: Schema = either(
    NULL,
    FREE_TEXT,
    object_of({"type": one_of(["json_object"]), "schema": or_null(SCHEMA)}, ["type"]),
    _of_type("json_schema", json_schema=_WITH_SCHEMA),
    _of_type("json_schema", schema=SCHEMA),
    _of_type("structural_tag", format={"type": "object"}),
    _of_type("structural_tag", **_TAGS),
)
TEXT_FORMAT: Schema = either(
    NULL,
    FREE_TEXT,
    object_of({"type": one_of(["json_object"]), "schema": or_null(SCHEMA)}, ["type"]),
    _of_type("json_schema", schema=SCHEMA),
)
_STRUCTURED: Fields = {
    "json": or_null(SCHEMA),
    "regex": or_null(_SOURCE),
    "choice": or_null(_NONEMPTY),
    "grammar": or_null(_SOURCE),
    "structural_tag": or_null(_TAG),
    "json_object": one_of([None, True, False]),
}
FORMATS: Fields = {
    "response_format": RESPONSE_FORMAT,
    "structured_outputs": or_null(object_of(_STRUCTURED, others=one_of([None, False]))),
    "guided_json": or_null(SCHEMA),
    "guided_regex": or_null(_SOURCE),
    "guided_choice": _CHOICES,
    "guided_grammar": or_null(_SOURCE),
    "json_schema": or_null(SCHEMA),
    "regex": or_null(_SOURCE),
    "ebnf": or_null(_SOURCE),
    "structural_tag": or_null(_TAG),
    "guided_decoding_backend": ANY,
}
"""Of these one may be given."""
