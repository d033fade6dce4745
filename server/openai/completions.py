"""POST /v1/completions: what a completion asks, and the shape of its reply."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aiohttp import web

from tasuki.engine.messages import Tokens
from tasuki.server.errors import InvalidField
from tasuki.server.fields.completions import MAX_PROMPTS, OF_COMPLETIONS
from tasuki.server.replies.kept_bytes import ids_bytes, score_bytes, submit_bytes
from tasuki.server.replies.scored_prompt import ScoredPrompt, check_scores
from tasuki.server.request_checks import check_vocabulary, to_tokens
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.chat_template import RenderedPrompt
from tasuki.server.text.grammars.asked_grammar import AskedGrammar, thinking_at_end
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.thinking import Thinking

from .answer_format import read_answer_format
from .completion_reply import CompletionReply, ShownFields
from .generation import AskedReply, ServedModel, name_unknown, read_submit, shown_prompts
from .reply import ReplyHead
from .request_fields import RequestFields, check_account_fields
from .sampling import (
    SHOWN_IDS,
    AskedThinking,
    read_options,
    read_prompt_logprobs,
    read_token_names,
    read_top_logprobs,
)

# OpenAI's own for this endpoint.
_DEFAULT_NEW_TOKENS = 16


_PROMPTS = frozenset({str, list})
_HONOURED = frozenset({"n", "best_of", "echo", "prompt_logprobs", *SHOWN_IDS})


def read_completion(model: ServedModel, request: web.Request, fields: RequestFields) -> AskedReply:
    """On any thread."""
    name_unknown(model, request, fields, OF_COMPLETIONS)
    check_account_fields(fields)
    prompts = read_prompts(fields, model.codec)
    top = read_top_logprobs(fields, "logprobs")
    options = read_options(
        fields,
        model.codec,
        _DEFAULT_NEW_TOKENS,
        model.sampling_defaults,
        top,
        least_new_tokens=0,
        honoured=_HONOURED,
    )
    _check_choices(len(prompts) * options.choices)
    asked = read_answer_format(fields)
    thoughts = _thoughts(asked, options.thinking, prompts, model.codec)
    followed = {thinking: options.placed(asked, thinking, model.codec) for thinking in {*thoughts}}
    options = replace(options, asked=asked)
    shown = _read_shown(fields, top)
    submits = [
        read_submit(
            request,
            fields,
            RenderedPrompt(prompt.tokens),
            followed[thinking],
            model,
            place,
            shown.scored_top,
        )
        for place, (prompt, thinking) in enumerate(zip(prompts, thoughts, strict=True))
    ]
    check_scores("prompt", submits, options.choices)
    scored = [ScoredPrompt(prompt.tokens) for prompt in prompts]
    head = ReplyHead(f"cmpl-{submits[0].request_id}", model.named(fields.text("model")))
    names = read_token_names(fields, model.codec)
    shapes = [
        CompletionReply(
            head,
            names,
            place * options.choices + choice,
            shown,
            prompt.text,
            scores,
            streamed=options.stream,
        )
        for place, (prompt, scores) in enumerate(zip(prompts, scored, strict=True))
        for choice in range(options.choices)
    ]
    taken = scored if shown.scored_top is not None else [None] * len(scored)
    kept = sum(submit_bytes(submit) + score_bytes(submit, options.choices) for submit in submits)
    ids = shown_prompts(fields, submits)
    return AskedReply(submits, options, shapes, taken, kept + ids_bytes(ids), ids)


def _thoughts(
    asked: AskedGrammar | None,
    budget: AskedThinking | None,
    prompts: Sequence["AskedPrompt"],
    codec: TextCodec,
) -> list[Thinking]:
    """Return how the answer to each prompt thinks, where a grammar or a budget depends on it."""
    if asked is None and budget is None:
        return [Thinking.NEVER] * len(prompts)
    return [thinking_at_end(prompt.tokens, codec) for prompt in prompts]


def _check_choices(count: int) -> None:
    if count > MAX_PROMPTS:
        raise InvalidField(
            "n", f"of these prompts would be {count} choices: ask for at most {MAX_PROMPTS}"
        )


def _read_shown(fields: RequestFields, top: int) -> ShownFields:
    return ShownFields(
        echo=fields.flag("echo"),
        logprobs=None if fields.get("logprobs") is None else top,
        prompt_logprobs=read_prompt_logprobs(fields),
    )


@dataclass(frozen=True)
class AskedPrompt:
    """text: None where its tokens were given."""

    tokens: Tokens
    text: str | None


def read_prompts(fields: RequestFields, codec: TextCodec) -> list[AskedPrompt]:
    """A string, token ids, or those of a list of strings and lists of token ids."""
    prompt = fields.get("prompt")
    if not isinstance(prompt, list):
        return [_of_text(prompt, codec)]
    # Not one by one: a prompt of thousands would hold the interpreter for long.
    kinds = set(map(type, prompt))
    if not kinds & _PROMPTS:
        return [_of_ids(prompt, codec)]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidField("prompt", f"holds {len(prompt)} prompts: send at most {MAX_PROMPTS}")
    if kinds - _PROMPTS:
        raise InvalidField("prompt", "mixes token ids with prompts: send one list of either")
    return [
        _of_ids(item, codec) if isinstance(item, list) else _of_text(item, codec) for item in prompt
    ]


def read_prompt(fields: RequestFields, codec: TextCodec) -> Tokens:
    """int32 [T] of read_prompts(), where there may be one alone."""
    prompts = read_prompts(fields, codec)
    if len(prompts) != 1:
        raise InvalidField("prompt", "must be one string or one list of token ids")
    return prompts[0].tokens


def _of_text(prompt: object, codec: TextCodec) -> AskedPrompt:
    if not isinstance(prompt, str):
        raise InvalidField("prompt", "must be a string, a list of token ids, or a list of these")
    return AskedPrompt(ChatRenderer(codec).text("prompt", prompt), prompt)


def _of_ids(ids: list[object], codec: TextCodec) -> AskedPrompt:
    tokens = to_tokens("prompt", ids)
    check_vocabulary("prompt", tokens, codec.vocab_size)
    return AskedPrompt(tokens, None)
