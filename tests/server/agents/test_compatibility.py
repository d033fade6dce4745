"""Tests of every field of the peers' requests and of the fields named in docs/compatibility.md. A
field is refused by its name, changes the request or its reply, or changes nothing at all. A field
with none of these fates would be silently ignored."""

import json
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from tasuki.engine import messages as m
from tasuki.server.openai.generation import ServedModel
from tasuki.server.openapi.openai_fields import OF_CHATS, OF_COMPLETIONS
from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_front import AgentFront, agent_codec
from tests.harness.http_calls import Reply
from tests.harness.http_fixtures import running_http

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
DOCUMENT = Path(__file__).parents[3] / "docs" / "compatibility.md"


@pytest.fixture(autouse=True)
def answer(front: AgentFront) -> None:
    front.say("it was so\n</think>\n\nfine morning" * 2)


class Fate(Enum):
    REFUSED = "refused"
    HONOURED = "honoured"
    IGNORED = "ignored"


REFUSED, HONOURED, IGNORED = Fate
Fields = Mapping[str, tuple[Any, Fate]]
USER = [{"role": "user", "content": "it was"}]
SCHEMA = {"type": "object", "properties": {"days": {"type": "integer"}}}
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
RULES = 'root ::= "a"'
BASE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER, "seed": 1, "tools": [FUNCTION]},
    COMPLETION: {"prompt": "it was", "seed": 1},
    MESSAGES: {"messages": USER, "seed": 1, "max_tokens": 50},
    RESPONSES: {"input": "it was", "seed": 1},
}

# This template ignores it; test_exact_turns.py has templates with an effect.
PRESERVE = (True, IGNORED)
SAMPLING: Fields = {
    "model": ("other", HONOURED),
    "temperature": (0.5, HONOURED),
    "top_p": (0.5, HONOURED),
    "top_k": (5, HONOURED),
    "seed": (5, HONOURED),
    "max_tokens": (7, HONOURED),
    "max_completion_tokens": (7, HONOURED),
    "ignore_eos": (True, HONOURED),
    "stop_token_ids": ([9], HONOURED),
    "min_p": (0.5, HONOURED),
    "presence_penalty": (1, HONOURED),
    "frequency_penalty": (1, HONOURED),
    "repetition_penalty": (2, HONOURED),
    "logit_bias": ({"5": 1}, HONOURED),
    "min_tokens": (2, HONOURED),
    "bad_words": (["it"], HONOURED),
    "allowed_token_ids": ([5], HONOURED),
    "use_beam_search": (True, REFUSED),
    "typical_p": (0.5, REFUSED),
    "watermarking": (True, REFUSED),
    "logits_processors": (["a.b"], REFUSED),
    "custom_logit_processor": ("x", REFUSED),
    "custom_params": ({"a": 1}, REFUSED),
    "vllm_xargs": ({"a": 1}, REFUSED),
    "min_new_tokens": (5, REFUSED),
    "lora_path": ("x", REFUSED),
    "length_penalty": (2.0, IGNORED),
}
ENDS: Fields = {
    "stop": ("in", HONOURED),
    "include_stop_str_in_output": (True, HONOURED),
    "no_stop_trim": (True, HONOURED),
    "stop_regex": ("a+", REFUSED),
    "repetition_detection": ({"max_pattern_size": 2}, REFUSED),
    "thinking_budget": (5, HONOURED),
    "thinking_token_budget": (5, HONOURED),
}
FOLLOWED: Fields = {
    "response_format": ({"type": "json_object"}, HONOURED),
    "structured_outputs": ({"regex": "a"}, HONOURED),
    "guided_json": (SCHEMA, HONOURED),
    "guided_regex": ("a", HONOURED),
    "guided_choice": (["a"], HONOURED),
    "guided_grammar": (RULES, HONOURED),
    "json_schema": (json.dumps(SCHEMA), HONOURED),
    "regex": ("a", HONOURED),
    "ebnf": (RULES, HONOURED),
    "structural_tag": ('{"format": {"type": "regex", "pattern": "a"}}', HONOURED),
    "guided_decoding": ({"regex": "a"}, REFUSED),
    "guided_whitespace_pattern": (" ", REFUSED),
    "guided_decoding_backend": ("xgrammar", IGNORED),
    "grammar": (RULES, REFUSED),
}
PROMPT: Fields = {
    "truncate_prompt_tokens": (1, REFUSED),
    "truncation_side": ("left", IGNORED),
    "prompt_embeds": (["x"], REFUSED),
    "input_embeds": ([[0.5]], REFUSED),
    "input_ids": ([5], REFUSED),
    "session_params": ({"id": "a"}, REFUSED),
    "add_special_tokens": (True, IGNORED),
    "cache_salt": ("a", HONOURED),
}
REPLY: Fields = {
    "n": (2, HONOURED),
    "best_of": (2, REFUSED),
    "stream": (True, HONOURED),
    "stream_options": ({"include_usage": True}, HONOURED),
    "prompt_logprobs": (1, HONOURED),
    # No special token is in these answers; test_honoured_fields.py has some.
    "skip_special_tokens": (False, IGNORED),
    "spaces_between_special_tokens": (False, IGNORED),
    "return_token_ids": (True, HONOURED),
    "return_tokens_as_token_ids": (True, HONOURED),
    "return_hidden_states": (True, REFUSED),
    "return_prompt_text": (True, REFUSED),
    "return_prompt_token_ids": (True, REFUSED),
    "return_meta_info": (True, REFUSED),
    "return_cached_tokens_details": (True, REFUSED),
    "return_routed_experts": (True, REFUSED),
    "logprob_token_ids": ([5], REFUSED),
    "suffix": ("a", REFUSED),
    "modalities": (["audio"], REFUSED),
    "audio": ({"voice": "a"}, REFUSED),
}
# Fields of accounts, routing, clocks, media absent from the request, endpoints not served.
OUTSIDE: Fields = {
    "priority": (3, HONOURED),
    "prompt_cache_key": ("a", HONOURED),
    **{
        name: (value, IGNORED)
        for name, value in {
            "user": "ann",
            "store": True,
            "service_tier": "auto",
            "request_id": "a",
            "rid": "a",
            "session_id": "a",
            "extra_key": "a",
            "custom_labels": {"a": "b"},
            "kv_transfer_params": {"a": 1},
            "ec_transfer_params": {"a": 1},
            "bootstrap_host": "a",
            "bootstrap_port": 1,
            "bootstrap_room": 1,
            "data_parallel_rank": 1,
            "routed_dp_rank": 1,
            "disagg_prefill_dp_rank": 1,
            "ngram_corpus_id": "a",
            "stream_interval": 5,
            "routed_experts_prompt_start": 5,
            "routed_experts_start_len": 5,
            "return_token_offsets": True,
            "return_mm_kwargs": False,
            "media_io_kwargs": {"a": {}},
            "mm_processor_kwargs": {"a": 1},
            "images_config": {"a": 1},
            "max_dynamic_patch": 5,
            "min_dynamic_patch": 5,
            "use_audio_in_video": True,
        }.items()
    },
}
BOTH: Fields = {**SAMPLING, **ENDS, **FOLLOWED, **PROMPT, **REPLY, **OUTSIDE}
OF: dict[str, Fields] = {
    CHAT: {
        **BOTH,
        "messages": ([{"role": "user", "content": "fine"}], HONOURED),
        "prediction": ({"type": "content", "content": "fine"}, HONOURED),
        "tools": ([], HONOURED),
        "tool_choice": ("required", HONOURED),
        "parallel_tool_calls": (False, HONOURED),
        "thinking": ({"type": "disabled"}, HONOURED),
        "functions": ([{"name": "a"}], REFUSED),
        "function_call": ({"name": "a"}, REFUSED),
        "logprobs": (True, HONOURED),
        "top_logprobs": (2, HONOURED),
        "echo": (True, REFUSED),
        "add_generation_prompt": (False, HONOURED),
        "continue_final_message": (True, HONOURED),
        "chat_template": ("{{ messages }}", REFUSED),
        "chat_template_kwargs": ({"enable_thinking": False}, HONOURED),
        "enable_thinking": (False, HONOURED),
        "preserve_thinking": PRESERVE,
        "reasoning_effort": ("none", HONOURED),
        "reasoning": ({"enabled": False}, HONOURED),
        "documents": ([{"text": "a"}], REFUSED),
        "web_search_options": ({"a": 1}, REFUSED),
        "verbosity": ("low", REFUSED),
        "include_reasoning": (False, HONOURED),
        "separate_reasoning": (False, REFUSED),
        "stream_reasoning": (False, REFUSED),
        "task": ("title", REFUSED),
        "metadata": ({"x-session-id": "a"}, HONOURED),
    },
    COMPLETION: {
        **BOTH,
        "max_completion_tokens": (7, HONOURED),
        "prompt": ("fine", HONOURED),
        "logprobs": (2, HONOURED),
        "echo": (True, HONOURED),
    },
    MESSAGES: {
        "model": ("other", HONOURED),
        "messages": ([{"role": "user", "content": "fine"}], HONOURED),
        "max_tokens": (7, HONOURED),
        "stream": (True, HONOURED),
        "stop_sequences": (["in"], HONOURED),
        "temperature": (0.5, HONOURED),
        "top_p": (0.5, HONOURED),
        "top_k": (5, HONOURED),
        "system": ("be brief", HONOURED),
        "tools": ([{"name": "weather", "input_schema": SCHEMA}], HONOURED),
        "tool_choice": ({"type": "any"}, REFUSED),
        "thinking": ({"type": "adaptive"}, HONOURED),
        "output_config": ({"format": {"type": "json_schema", "schema": SCHEMA}}, HONOURED),
        "output_format": ({"type": "json_schema", "schema": SCHEMA}, HONOURED),
        "cache_control": ({"type": "ephemeral"}, HONOURED),
        "context_management": ({"edits": [{"type": "clear_tool_uses_20250919"}]}, REFUSED),
        "metadata": ({"user_id": "a"}, HONOURED),
        "cache_salt": ("a", HONOURED),
        "priority": (3, HONOURED),
        "seed": (5, HONOURED),
        **{
            name: ("a", IGNORED)
            for name in (
                *("service_tier", "inference_geo", "speed", "diagnostics", "user_profile_id"),
                *("workspace_id", "billing_policy"),
            )
        },
        **{
            name: ({"a": 1}, REFUSED)
            for name in (
                *("container", "mcp_servers", "fallbacks", "compaction", "thread"),
                *("kv_transfer_params", "chat_template_kwargs"),
            )
        },
    },
    RESPONSES: {
        "model": ("other", HONOURED),
        "input": ("fine", HONOURED),
        "instructions": ("be brief", HONOURED),
        "max_output_tokens": (7, HONOURED),
        "stream": (True, HONOURED),
        "temperature": (0.5, HONOURED),
        "top_p": (0.5, HONOURED),
        "metadata": ({"a": "b"}, HONOURED),
        "parallel_tool_calls": (False, HONOURED),
        "tools": ([{"type": "function", "name": "weather", "parameters": SCHEMA}], HONOURED),
        "tool_choice": ("required", REFUSED),
        "previous_response_id": ("resp_none", REFUSED),
        "store": (False, HONOURED),
        "conversation": (7, REFUSED),
        "text": ({"format": {"type": "json_object"}}, HONOURED),
        "reasoning": ({"effort": "none"}, HONOURED),
        "include": (["message.output_text.logprobs"], HONOURED),
        "truncation": ("auto", REFUSED),
        "background": (True, HONOURED),
        "top_logprobs": (2, HONOURED),
        "context_management": ([{"type": "compaction"}], REFUSED),
        "top_k": (5, HONOURED),
        "min_p": (0.5, HONOURED),
        "presence_penalty": (1, HONOURED),
        "repetition_penalty": (2, HONOURED),
        "frequency_penalty": (1, HONOURED),
        "thinking_token_budget": (5, HONOURED),
        "thinking_budget": (5, HONOURED),
        "seed": (5, HONOURED),
        "stop_token_ids": ([9], HONOURED),
        "ignore_eos": (True, HONOURED),
        "cache_salt": ("a", HONOURED),
        "priority": (3, HONOURED),
        "chat_template_kwargs": ({"enable_thinking": False}, HONOURED),
        "enable_thinking": (False, HONOURED),
        "preserve_thinking": PRESERVE,
        "prompt_cache_key": ("a", HONOURED),
        "user": ("a", HONOURED),
        "safety_identifier": ("a", HONOURED),
        "max_tool_calls": (3, HONOURED),
        **{
            name: ({"a": 1}, IGNORED)
            for name in (
                *("service_tier", "client_metadata", "prompt_cache_retention"),
                *("prompt_cache_options", "stream_options", "access_programs"),
            )
        },
        **{
            name: ("a", REFUSED)
            for name in (
                *("prompt", "moderation", "image", "logit_bias", "skip_special_tokens"),
                *("include_stop_str_in_output", "request_id", "mm_processor_kwargs"),
                *("enable_response_messages", "previous_input_messages", "previous_response"),
                *("structured_outputs", "stop", "vllm_xargs"),
            )
        },
    },
}
# Other fields a request needs for the field to have a meaning.
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    (CHAT, "parallel_tool_calls"): {"tool_choice": "required"},
    (CHAT, "top_logprobs"): {"logprobs": True},
    (MESSAGES, "cache_control"): {
        "system": "be brief",
        "messages": [*USER, {"role": "assistant", "content": "so"}] * 3 + USER,
    },
    **{
        (path, name): {"stop": "in"}
        for path in (CHAT, COMPLETION)
        for name in ("include_stop_str_in_output", "no_stop_trim")
    },
    (CHAT, "continue_final_message"): {
        "messages": [*USER, {"role": "assistant", "content": "so"}],
        "add_generation_prompt": False,
    },
    (CHAT, "return_tokens_as_token_ids"): {"logprobs": True},
    (COMPLETION, "return_tokens_as_token_ids"): {"logprobs": 1},
    **{
        (COMPLETION, name): {"prompt": "it was <think>\n"}
        for name in ("thinking_budget", "thinking_token_budget")
    },
    (CHAT, "stream_options"): {"stream": True},
    (COMPLETION, "stream_options"): {"stream": True},
}
# Names in the document's first columns for values, headers, or parts of other fields.
NO_FIELDS = frozenset(
    {
        *("json_schema", "json_object", "json", "regex", "choice", "grammar", "auto", "none"),
        *("required", "allowed_tools", "strict", "generation_config", "reasoning_content"),
        *("usage", "text", "thinking", "tool_use", "tool_result", "image", "document"),
        *("search_result", "redacted_thinking", "citations", "null", "content", "refusal"),
        *("false", "enabled", "effort", "disabled", "auto", "system", "developer"),
        # Parts of stream_options.
        *("include_usage", "continuous_usage_stats"),
        # Types of content parts.
        *("input_text", "output_text", "image_url", "input_audio", "file"),
    }
)


def bare(reply: Reply) -> str:
    """Return the reply without times, ids and signatures; these differ between two equal
    replies."""
    text = reply.body.decode()
    text = re.sub(r'"(created|created_at|completed_at)": ?[0-9.]+', "", text)
    text = re.sub(r"(chatcmpl|cmpl|resp|rs|msg|call|fc|sig|req)[-_][0-9a-zA-Z_=-]+", "", text)
    return re.sub(r'"(id|request_id|item_id|signature)": ?"[^"]*"', "", text)


def asked(front: AgentFront, path: str, fields: Mapping[str, Any]) -> tuple[str, str] | Reply:
    """Return the engine's request and the reply as texts; return the reply alone if it is a
    refusal."""
    reply = front.http.post(path, {**BASE[path], **fields})
    if reply.status != 200:
        return reply
    submit: m.Submit = front.submits()[-1]
    parts = (submit.prompt.tolist(), submit.sampling, submit.salt, submit.marks, submit.session)
    rest = (submit.priority, submit.prompt_logprobs, len(submit.forks), submit.prediction.tolist())
    return repr((parts, rest)), bare(reply)


@pytest.mark.parametrize("path", OF)
def test_no_field_is_silently_ignored(front: AgentFront, path: str) -> None:
    faults = [fault for name in OF[path] if (fault := fault_of(front, path, name))]
    assert not faults, "\n".join(faults)


def fault_of(front: AgentFront, path: str, name: str) -> str:
    """Return the difference between a field's fate and the table's, or an empty text if they
    agree."""
    value, fate = OF[path][name]
    beside = BESIDE.get((path, name), {})
    if fate is REFUSED:
        reply = front.http.post(path, {**BASE[path], **beside, name: value})
        is_named = reply.status == 400 and reply.json["error"]["message"].startswith(name)
        return "" if is_named else f"{name} is not refused by its name: {reply}"
    plain, changed = (asked(front, path, {**beside, **extra}) for extra in ({}, {name: value}))
    if isinstance(plain, Reply) or isinstance(changed, Reply):
        return f"{name} or what it needs is refused: {plain}, {changed}"
    return (
        "" if (plain != changed) is (fate is HONOURED) else f"{name} is not {fate.value}: {changed}"
    )


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_no_known_field_is_named_as_unknown(path: str) -> None:
    known = OF_CHATS if path == CHAT else OF_COMPLETIONS
    assert OF[path].keys() <= known.keys()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_an_unknown_field_is_named_in_a_header_and_the_log(
    front: AgentFront, caplog: pytest.LogCaptureFixture, path: str, stream: bool
) -> None:
    odd = {"temprature": 1, "of\ntomorrow": 2, "absent": None, **{f"f{n}": n for n in range(20)}}
    with caplog.at_level("INFO"):
        reply = front.http.post(path, {**BASE[path], "stream": stream, **odd})
    assert reply.status == 200
    shown = ", ".join(["temprature", *(f"f{n}" for n in range(7))])
    assert reply.headers["x-tasuki-unknown-fields"] == shown and shown in caplog.text
    plain = front.http.post(path, {**BASE[path], "stream": stream, "absent": None})
    assert "x-tasuki-unknown-fields" not in plain.headers


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_an_unknown_field_is_refused_where_fields_are_strict(codec: TextCodec, path: str) -> None:
    served = agent_codec(codec)
    model = ServedModel("tiny", 1, 1 << 15, served, strict_fields=True)
    with running_http(served, model=model) as http:
        reply = http.post(path, {**BASE[path], "temprature": 1})
        assert (reply.status, reply.error["param"]) == (400, "temprature")
        assert http.post(path, {**BASE[path], "temprature": None, "rid": "a"}).status == 200


def documented(text: str) -> set[str]:
    """Return the names in the first columns of a document's tables."""
    rows = (line.split("|")[1] for line in text.splitlines() if line.startswith("|"))
    return {name for row in rows for name in re.findall(r"`([a-z_]+)[`.:]", row)}


def test_the_document_and_these_tables_name_the_same_fields() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").partition("## Fields of chats")[2]
    chats, _, agents = text.partition("Fields of `/v1/messages`")
    messages, _, responses = agents.partition("Fields of `/v1/responses`")
    parts = ((chats, (CHAT, COMPLETION)), (messages, (MESSAGES,)), (responses, (RESPONSES,)))
    for part, paths in parts:
        fates = {name: fate for path in paths for name, (_, fate) in OF[path].items()}
        assert documented(part) - NO_FIELDS <= fates.keys()
        unnamed = fates.keys() - set(re.findall(r"`([a-z_]+)[`.:]", part))
        # A field missing from an agent's table is refused as unknown.
        assert all(fates[name] is REFUSED and part is not chats for name in unnamed), unnamed
