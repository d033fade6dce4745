"""What the answer of an OpenAI-shaped request has to follow: `response_format`, vLLM's
`structured_outputs` and its older guided fields, SGLang's json_schema, regex, ebnf, structural_tag.

Pure functions; an error names the place of the wrong value. Of all these fields one may be given.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tasuki.model.grammar.grammar import GrammarKind
from tasuki.server.errors import InvalidField
from tasuki.server.text.grammars.asked_grammar import (
    AskedGrammar,
    of_any_object,
    of_choices,
    of_schema,
    of_text,
)
from tasuki.server.text.grammars.structural_tag import of_structural_tag

from .request_fields import RequestFields

_Read = Callable[[str, Any], AskedGrammar]


def _regex(field: str, source: Any) -> AskedGrammar:
    return of_text(field, GrammarKind.REGEX, source)


def _rules(field: str, source: Any) -> AskedGrammar:
    return of_text(field, GrammarKind.LARK, source)


def _choices(field: str, choices: Any) -> AskedGrammar:
    if not isinstance(choices, list):
        raise InvalidField(field, "must be a list of strings")
    return of_choices(field, choices)


_STRUCTURED: Mapping[str, _Read] = {
    "json": of_schema,
    "regex": _regex,
    "choice": _choices,
    "grammar": _rules,
    "structural_tag": of_structural_tag,
}
_FIELDS: Mapping[str, _Read] = {
    "guided_json": of_schema,
    "guided_regex": _regex,
    "guided_choice": _choices,
    "guided_grammar": _rules,
    "json_schema": of_schema,
    "regex": _regex,
    "ebnf": _rules,
    "structural_tag": of_structural_tag,
}


def read_answer_format(fields: RequestFields) -> AskedGrammar | None:
    """None where any text will do. Raises InvalidField."""
    found = [
        _of_response_format(fields),
        _of_structured_outputs(fields),
        *(read(name, fields.get(name)) for name, read in _FIELDS.items() if _given(fields, name)),
    ]
    asked = [item for item in found if item is not None]
    if len(asked) > 1:
        raise InvalidField(asked[1].field, f"cannot be given beside {asked[0].field}")
    return asked[0] if asked else None


def read_format(
    field: str,
    form: RequestFields,
    schema: Any,
    types: str = "text, json_object or json_schema",
) -> AskedGrammar | None:
    """Of OpenAI's object with a type. schema: where that API has the one of its type json_schema;
    an object of any schema may have one too, as llama.cpp's clients send. types: that it has, for
    who asks for another. Raises InvalidField."""
    kind = form.text("type")
    if kind == "text":
        return None
    if kind == "json_object" and schema is None:
        return of_any_object(field)
    if kind not in ("json_schema", "json_object"):
        raise InvalidField(f"{field}.type", f"must be {types}")
    if schema is None:
        raise InvalidField(f"{field}.json_schema", "must have a schema")
    return of_schema(field, schema)


def _of_response_format(fields: RequestFields) -> AskedGrammar | None:
    name = "response_format"
    if fields.get(name) is None:
        return None
    form = fields.fields(name)
    if form.text("type") == "structural_tag":
        return of_structural_tag(name, fields.get(name))
    inner = form.get("json_schema")
    schema = (inner if isinstance(inner, dict) else form).get("schema")
    return read_format(name, form, schema, "text, json_object, json_schema or structural_tag")


def _of_structured_outputs(fields: RequestFields) -> AskedGrammar | None:
    name = "structured_outputs"
    given = {key: value for key, value in fields.items_by_name(name).items() if value is not None}
    found = []
    for key, value in given.items():
        place = f"{name}.{key}"
        read = _STRUCTURED.get(key)
        if read is not None:
            found.append(read(place, value))
        elif key == "json_object" and value is True:
            found.append(of_any_object(place))
        elif value is not False:
            raise InvalidField(place, "is not supported here: leave it out")
    if len(found) > 1:
        raise InvalidField(found[1].field, f"cannot be given beside {found[0].field}")
    return found[0] if found else None


def _given(fields: RequestFields, name: str) -> bool:
    """No choices are no wish."""
    value = fields.get(name)
    return value is not None and not (name == "guided_choice" and value == [])
