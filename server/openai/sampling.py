"""Options of an OpenAI-shaped request: sampling, stop strings, streaming, grammar; and their
defaults.

Pure functions. An unsupported field is rejected if it would change the answer. Fields about
accounts, storage and routing are ignored. Fields unknown to every server of this API are ignored
too, as in vLLM.

SamplingDefaults: values for sampling fields absent in a request. They come from the checkpoint's
generation_config.json, as in vLLM, or are OpenAI's defaults. Owns the choice between the two.
Immutable; read once, before a node serves.

read_answer_format(): the grammar of an answer. Its fields are `response_format`, vLLM's
`structured_outputs` and older guided fields, and SGLang's json_schema, regex, ebnf, structural_tag.
A request may give only one of these fields. An error names the position of the wrong value.
"""

import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tasuki.model.grammar.grammar import GrammarKind
from tasuki.model.ops.sampling.params import MAX_BIAS, MAX_BIASES, MAX_TOP_LOGPROBS, SamplingParams
from tasuki.model.ops.sampling.thinking_budget import MAX_THINKING_TOKENS
from tasuki.server.errors import InvalidField
from tasuki.server.openapi.common_fields import STREAM_OPTIONS, UNSERVED
from tasuki.server.request_checks import (
    MAX_CHOICES,
    MAX_STOP_TOKENS,
    asked_sampling,
    check_stops,
    check_vocabulary,
    to_tokens,
)
from tasuki.server.text.chat_renderer import placed_budget, read_bad_words
from tasuki.server.text.grammars.asked_grammar import (
    AskedGrammar,
    of_any_object,
    of_choices,
    of_schema,
    of_text,
    placed,
)
from tasuki.server.text.grammars.structural_tag import of_structural_tag
from tasuki.server.text.stop_strings import NO_STOPS, StopPlace, StopRule
from tasuki.server.text.text_answer import Thinking
from tasuki.server.text.text_codec import TextCodec

from .request_fields import RequestFields
from .token_details import TokenNames

_Read = Callable[[str, Any], AskedGrammar]


def _regex(field: str, source: Any) -> AskedGrammar:
    return of_text(field, GrammarKind.REGEX, source)


def _rules(field: str, source: Any) -> AskedGrammar:
    return of_text(field, GrammarKind.LARK, source)


def _choice_texts(field: str, choices: Any) -> AskedGrammar:
    if not isinstance(choices, list):
        raise InvalidField(field, "must be a list of strings")
    return of_choices(field, choices)


_STRUCTURED: Mapping[str, _Read] = {
    "json": of_schema,
    "regex": _regex,
    "choice": _choice_texts,
    "grammar": _rules,
    "structural_tag": of_structural_tag,
}
_FIELDS: Mapping[str, _Read] = {
    "guided_json": of_schema,
    "guided_regex": _regex,
    "guided_choice": _choice_texts,
    "guided_grammar": _rules,
    "json_schema": of_schema,
    "regex": _regex,
    "ebnf": _rules,
    "structural_tag": of_structural_tag,
}


def read_answer_format(fields: RequestFields) -> AskedGrammar | None:
    """Return the grammar required by the request for its answer; None if any text is allowed.
    Raises InvalidField."""
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
    """Return the grammar of OpenAI's format object, or None for type text. form: fields of the
    object. schema: JSON schema for type json_schema; also for json_object, as sent by llama.cpp's
    clients. types: allowed types, for the error's text. Raises InvalidField."""
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
    """Return True if the request gives grammar field `name`. An empty guided_choice counts as
    absent."""
    value = fields.get(name)
    return value is not None and not (name == "guided_choice" and value == [])


CHECKPOINT = "auto"
NONE = "vllm"
FILE = "generation_config.json"


class GenerationConfigError(ValueError):
    """Error for an unusable generation_config.json. The message names the file, the field and the
    fix."""


@dataclass(frozen=True)
class SamplingDefaults:
    """Values for the sampling fields absent in an HTTP request. Fields are those of SamplingParams.
    max_new_tokens: limit for every answer, as in vLLM; None: no limit. Raises ValueError for a
    value no request may send. The error's text begins with the field's name."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")
        SamplingParams(**asdict(self) | {"max_new_tokens": self.max_new_tokens or 1})

    def bounded(self, new_tokens: int) -> int:
        """Return the smaller of `new_tokens` and `max_new_tokens`."""
        return new_tokens if self.max_new_tokens is None else min(new_tokens, self.max_new_tokens)

    @staticmethod
    def load(choice: str, model: Path) -> "SamplingDefaults":
        """Return the sampling defaults. choice: `auto` for generation_config.json of the checkpoint
        folder `model`, if it exists; `vllm` for OpenAI's defaults; otherwise a folder with the
        file. Raises GenerationConfigError."""
        if choice == NONE:
            return OPENAI_DEFAULTS
        path = (model if choice == CHECKPOINT else Path(choice)) / FILE
        if choice == CHECKPOINT and not path.exists():
            return OPENAI_DEFAULTS
        values = _read(path)
        try:
            return SamplingDefaults(
                temperature=_number(values, "temperature", 1.0),
                top_p=_number(values, "top_p", 1.0),
                # -1 means every token, as in requests.
                top_k=max(0, int(_number(values, "top_k", 0))),
                min_p=_number(values, "min_p", 0.0),
                repetition_penalty=_number(values, "repetition_penalty", 1.0),
                max_new_tokens=(
                    None
                    if values.get("max_new_tokens") is None
                    else int(_number(values, "max_new_tokens", 0))
                ),
            )
        except ValueError as error:
            raise GenerationConfigError(
                f"{path}: {error}; fix it, or pass --generation-config {NONE}"
            ) from error


OPENAI_DEFAULTS = SamplingDefaults()
"""Sampling defaults of OpenAI's API. Defaults over gRPC are greedy instead."""


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GenerationConfigError(
            f"{path} cannot be read ({error.strerror}): --generation-config is {CHECKPOINT}, "
            f"{NONE}, or a folder with the file"
        ) from error
    except ValueError as error:
        raise GenerationConfigError(f"{path} is not JSON ({error}): copy the file again") from error
    if not isinstance(values, dict):
        raise GenerationConfigError(f"{path} is not a JSON object: copy the file again")
    return values


def _number(values: dict[str, Any], name: str, default: float) -> float:
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, not {value!r:.40}")
    return value


_UNBOUNDED = -1
SHOWN_IDS = frozenset({"return_token_ids", "return_tokens_as_token_ids"})
"""vLLM's request fields to show token ids in replies."""


@dataclass(frozen=True)
class AskedThinking:
    """A request's limit of thinking tokens. field: name of the request field with the limit, for
    errors. tokens: largest number of thinking tokens."""

    field: str
    tokens: int


@dataclass(frozen=True)
class AnswerOptions:
    """The options of a request's answers. stops: stop strings. stop_is_kept: keep the stop string
    at the end of the answer's text. stream: send events. include_usage: end a stream with a chunk
    of `usage`. continuous_usage: the other chunks have `usage` too. choices: number of answers to
    each prompt. asked: the requested grammar, not yet compiled. names_special: write special tokens
    by name in the answer's text. thinking: limit of thinking tokens; None: no limit."""

    sampling: SamplingParams
    stops: tuple[str, ...]
    stop_is_kept: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool = False
    choices: int = 1
    asked: AskedGrammar | None = None
    names_special: bool = False
    thinking: AskedThinking | None = None

    def split_stops(self, place: StopPlace, *, is_parsed: bool) -> tuple["AnswerOptions", StopRule]:
        """Return the options with the stop strings for an answer's whole text, and a rule with the
        stop strings for its content only. One of the two has all stop strings. place: part of the
        answer searched for them. is_parsed: the answer may have reasoning or calls besides
        content."""
        if place is StopPlace.EVERYWHERE or not is_parsed or not self.stops:
            return self, NO_STOPS
        rule = StopRule(self.stops, self.stop_is_kept, self.sampling.min_tokens)
        return replace(self, stops=()), rule

    def placed(
        self, asked: AskedGrammar | None, thinking: Thinking, codec: TextCodec
    ) -> "AnswerOptions":
        """Return the options with sampling parameters for the grammar, if any, and for the thinking
        budget. The grammar holds only after the thinking.

        thinking: thinking state at the end of the prompt. Raises InvalidField.
        """
        budget = None
        if self.thinking is not None:
            budget = placed_budget(self.thinking.field, self.thinking.tokens, thinking, codec)
        sampling = replace(self.sampling, grammar=placed(asked, thinking, codec), thinking=budget)
        return replace(self, sampling=sampling, asked=asked)


def read_options(
    fields: RequestFields,
    codec: TextCodec,
    default_new_tokens: int,
    defaults: SamplingDefaults,
    top_logprobs: int,
    least_new_tokens: int = 1,
    honoured: Collection[str] = (),
) -> AnswerOptions:
    """Return the options of a request. default_new_tokens: largest number of new tokens if the
    request gives none. defaults: values for absent sampling fields. top_logprobs: number of
    likeliest tokens reported with each token. least_new_tokens: smallest allowed limit of new
    tokens; 0 if the answer may be empty. honoured: fields read by the caller; otherwise they are
    rejected. Raises InvalidField."""
    for name, harmless in UNSERVED.items():
        if name not in honoured:
            fields.refuse_but(name, harmless)
    in_stream = _stream_options(fields)
    include_usage = "include_usage" in in_stream
    return AnswerOptions(
        sampling=_sampling(
            fields, codec, default_new_tokens, defaults, top_logprobs, least_new_tokens
        ),
        stops=_stops(fields),
        stop_is_kept=fields.flag("include_stop_str_in_output") or fields.flag("no_stop_trim"),
        stream=fields.flag("stream"),
        include_usage=include_usage,
        # As in vLLM, continuous_usage_stats alone has no effect.
        continuous_usage=include_usage and "continuous_usage_stats" in in_stream,
        choices=_choices(fields) if "n" in honoured else 1,
        names_special=not fields.flag("skip_special_tokens", default=True),
        thinking=_thinking(fields),
    )


def _thinking(fields: RequestFields) -> AskedThinking | None:
    """Return the request's limit of thinking tokens, or None without a limit. Fields: vLLM's,
    Qwen's, or the `thinking` object of DeepSeek and GLM. -1 means no limit, as in vLLM. Raises
    InvalidField."""
    found: AskedThinking | None = None
    for field, tokens in (
        ("thinking_token_budget", fields.integer("thinking_token_budget")),
        ("thinking_budget", fields.integer("thinking_budget")),
        ("thinking.budget_tokens", fields.fields("thinking").integer("budget_tokens")),
    ):
        if tokens is None or tokens == _UNBOUNDED:
            continue
        if not 0 <= tokens <= MAX_THINKING_TOKENS:
            raise InvalidField(
                field, f"must be in [0, {MAX_THINKING_TOKENS}], or -1 for no bound, not {tokens}"
            )
        if found is not None and found.tokens != tokens:
            raise InvalidField(field, f"is another bound than {found.field}: send one of them")
        found = found or AskedThinking(field, tokens)
    return found


def _stream_options(fields: RequestFields) -> frozenset[str]:
    """Return the names of the `stream_options` set to true. Raises InvalidField."""
    given = {
        name: value
        for name, value in fields.items_by_name("stream_options").items()
        if value is not None
    }
    if given and not fields.flag("stream"):
        raise InvalidField("stream_options", "needs stream: true, or leave it out")
    for name, value in given.items():
        place = f"stream_options.{name:.80}"
        if name not in STREAM_OPTIONS:
            raise InvalidField(place, "is not known here: leave it out")
        if not isinstance(value, bool):
            raise InvalidField(place, "must be true or false")
    return frozenset(name for name, value in given.items() if value)


def _choices(fields: RequestFields) -> int:
    """Return the number of answers to each prompt, from `n`. Raises InvalidField."""
    asked, best_of = fields.integer("n"), fields.integer("best_of")
    count = 1 if asked is None else asked
    if not 1 <= count <= MAX_CHOICES:
        raise InvalidField("n", f"must be in [1, {MAX_CHOICES}], not {count}")
    if best_of not in (None, count):
        raise InvalidField(
            "best_of", "is not supported here beside n, as in vLLM: leave it out, and choose"
        )
    return count


def read_prompt_logprobs(fields: RequestFields) -> int | None:
    """Return the number of likeliest tokens requested at each position of the prompt. Return None
    if the request asks for no logprobs of the prompt. Raises InvalidField, also with `stream`."""
    if fields.get("prompt_logprobs") is None:
        return None
    if fields.flag("stream"):
        raise InvalidField("prompt_logprobs", "is not sent in a stream: leave stream out")
    return read_top_logprobs(fields, "prompt_logprobs")


def read_top_logprobs(fields: RequestFields, field: str) -> int:
    """Return the number of likeliest tokens requested by `field`; 0 if it is absent. Raises
    InvalidField."""
    count = fields.integer(field) or 0
    if not 0 <= count <= MAX_TOP_LOGPROBS:
        raise InvalidField(field, f"must be in [0, {MAX_TOP_LOGPROBS}], not {count}")
    return count


def read_token_names(fields: RequestFields, codec: TextCodec) -> TokenNames:
    """Return the rule for naming tokens in logprobs: by text, or by id. Raises InvalidField."""
    return TokenNames(codec.tokenizer, fields.flag("return_tokens_as_token_ids"))


def _sampling(
    fields: RequestFields,
    codec: TextCodec,
    default_new_tokens: int,
    defaults: SamplingDefaults,
    top_logprobs: int,
    least_new_tokens: int,
) -> SamplingParams:
    limits = {name: fields.integer(name) for name in ("max_tokens", "max_completion_tokens")}
    limit = "max_tokens" if limits["max_completion_tokens"] is None else "max_completion_tokens"
    new_tokens = limits[limit]
    try:
        return asked_sampling(
            codec.vocab_size,
            max_new_tokens=defaults.bounded(
                default_new_tokens if new_tokens is None else new_tokens
            ),
            temperature=fields.number("temperature", defaults.temperature),
            top_p=fields.number("top_p", defaults.top_p),
            seed=_seed(fields),
            top_k=_top_k(fields, defaults.top_k),
            stop_token_ids=_stop_tokens(fields, codec.vocab_size),
            ignore_eos=fields.flag("ignore_eos"),
            top_logprobs=top_logprobs,
            least_new_tokens=least_new_tokens,
            min_p=fields.number("min_p", defaults.min_p),
            presence_penalty=fields.number("presence_penalty", 0.0),
            frequency_penalty=fields.number("frequency_penalty", 0.0),
            repetition_penalty=fields.number("repetition_penalty", defaults.repetition_penalty),
            logit_bias=_bias(fields),
            min_tokens=fields.integer("min_tokens") or 0,
            bad_words=read_bad_words("bad_words", fields.items("bad_words"), codec),
            allowed_token_ids=_allowed_tokens(fields),
        )
    except ValueError as error:
        name, _, complaint = str(error).partition(" ")
        raise InvalidField(limit if name == "max_new_tokens" else name, complaint) from error


def _stop_tokens(fields: RequestFields, vocab_size: int) -> tuple[int, ...]:
    stops = to_tokens("stop_token_ids", fields.items("stop_token_ids", MAX_STOP_TOKENS))
    check_vocabulary("stop_token_ids", stops, vocab_size)
    return tuple(stops.tolist())


def _allowed_tokens(fields: RequestFields) -> tuple[int, ...]:
    allowed = fields.items("allowed_token_ids")
    if not allowed and fields.get("allowed_token_ids") is not None:
        raise InvalidField("allowed_token_ids", "must hold at least one token id")
    return tuple(to_tokens("allowed_token_ids", allowed).tolist())


def _bias(fields: RequestFields) -> tuple[tuple[int, float], ...]:
    """Return the pairs of token id and bias in `logit_bias`, sorted by id. In JSON the ids are
    strings. Raises InvalidField."""
    given = fields.items_by_name("logit_bias")
    if len(given) > MAX_BIASES:
        raise InvalidField("logit_bias", f"must hold at most {MAX_BIASES} tokens, not {len(given)}")
    found = {}
    for name, bias in given.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise InvalidField("logit_bias", f"must name token ids, not {name!r:.40}")
        if type(bias) not in (int, float) or not -MAX_BIAS <= bias <= MAX_BIAS:
            raise InvalidField(
                "logit_bias",
                f"must hold numbers in [{-MAX_BIAS:g}, {MAX_BIAS:g}], not {bias!r:.40}",
            )
        found[int(name)] = float(bias)
    return tuple(sorted(found.items()))


def _top_k(fields: RequestFields, default: int) -> int:
    """Return the request's `top_k`, or `default` if it is absent. Return 0 (every token) for -1,
    because vLLM's clients write -1."""
    top_k = fields.integer("top_k")
    return default if top_k is None else 0 if top_k == -1 else top_k


def _seed(fields: RequestFields) -> int:
    """Return the request's seed. Return a random seed if it is absent, so equal requests get
    different answers."""
    seed = fields.integer("seed")
    return secrets.randbits(62) if seed is None else seed


def _stops(fields: RequestFields) -> tuple[str, ...]:
    stop = fields.get("stop")
    stops = [stop] if isinstance(stop, str) else fields.items("stop")
    return check_stops("stop", stops)
