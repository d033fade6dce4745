"""The fields of chats and completions that are honoured, refused by their names, or about what no
answer depends on. Any other is unknown: clients misspell them.

Pure.
"""

_OF_BOTH = frozenset(
    {
        *("add_special_tokens", "allowed_token_ids", "audio", "bad_words", "best_of"),
        *("bootstrap_host", "bootstrap_port", "bootstrap_room", "cache_salt", "custom_labels"),
        *("custom_logit_processor", "custom_params", "data_parallel_rank"),
        *("disagg_prefill_dp_rank", "ebnf", "ec_transfer_params", "echo", "extra_key"),
        *("frequency_penalty", "grammar", "guided_choice", "guided_decoding"),
        *("guided_decoding_backend", "guided_grammar", "guided_json", "guided_regex"),
        *("guided_whitespace_pattern", "ignore_eos", "images_config"),
        *("include_stop_str_in_output", "input_embeds", "input_ids", "json_schema"),
        *("kv_transfer_params", "length_penalty", "logit_bias", "logits_processors"),
        *("logprob_token_ids", "logprobs", "lora_path", "max_completion_tokens"),
        *("max_dynamic_patch", "max_tokens", "media_io_kwargs", "metadata", "min_dynamic_patch"),
        *("min_new_tokens", "min_p", "min_tokens", "mm_processor_kwargs", "modalities", "model"),
        *("n", "ngram_corpus_id", "no_stop_trim", "presence_penalty", "priority"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "prompt_embeds"),
        *("prompt_logprobs", "regex", "repetition_detection", "repetition_penalty", "request_id"),
        *("response_format", "return_cached_tokens_details", "return_hidden_states"),
        *("return_meta_info", "return_mm_kwargs", "return_prompt_text"),
        *("return_prompt_token_ids", "return_routed_experts", "return_token_ids"),
        *("return_token_offsets", "return_tokens_as_token_ids", "rid", "routed_dp_rank"),
        *("routed_experts_prompt_start", "routed_experts_start_len", "safety_identifier", "seed"),
        *("service_tier", "session_id", "session_params", "skip_special_tokens"),
        *("spaces_between_special_tokens", "stop", "stop_regex", "stop_token_ids", "store"),
        *("stream", "stream_interval", "stream_options", "structural_tag", "structured_outputs"),
        *("suffix", "temperature", "thinking_budget", "thinking_token_budget", "top_k", "top_p"),
        *("truncate_prompt_tokens", "truncation_side", "typical_p", "use_audio_in_video"),
        *("use_beam_search", "user", "vllm_xargs", "watermarking"),
    }
)
OF_CHATS = frozenset(
    {
        *_OF_BOTH,
        *("add_generation_prompt", "chat_template", "chat_template_kwargs"),
        *("continue_final_message", "documents", "enable_thinking", "function_call", "functions"),
        *("include_reasoning", "messages", "parallel_tool_calls", "prediction"),
        *("preserve_thinking", "reasoning", "reasoning_effort", "separate_reasoning"),
        *("stream_reasoning", "task", "thinking", "tool_choice", "tools", "top_logprobs"),
        *("verbosity", "web_search_options"),
    }
)
OF_COMPLETIONS = _OF_BOTH | {"prompt"}

_MOST = 8
"""Names that an answer's header has."""
_LONGEST = 64


def shown_names(names: list[str]) -> str:
    """As a header may hold them: some of them, and none that is no plain word."""
    plain = [name for name in names if name.isidentifier() and name.isascii()]
    return ", ".join(name for name in plain[:_MOST] if len(name) <= _LONGEST) or "?"
