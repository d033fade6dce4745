"""Refused fields, with the values that change nothing. Pure.

Null asks for that in every one of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .shapes import Fields, one_of

UNSERVED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "functions": ([],),
    "modalities": (["text"],),
    "use_beam_search": (False,),
    # Other ways to say what an answer follows (answer_format.py).
    "guided_decoding": ({},),
    "guided_whitespace_pattern": (),
    "grammar": (),
    # Which tokens are drawn.
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "vllm_xargs": ({},),
    "min_new_tokens": (0,),
    "typical_p": (1,),
    "lora_path": (),
    "watermarking": (False,),
    "custom_params": ({},),
    # Where the answer ends.
    "repetition_detection": (),
    "stop_regex": ([], ""),
    # What the prompt is.
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "truncate_prompt_tokens": (),
    "prompt_embeds": ([],),
    "input_embeds": ([],),
    "input_ids": (),
    "task": (),
    "session_params": ({},),
    "web_search_options": (),
    "function_call": ("auto", "none"),
    "verbosity": ("medium",),
    # What the reply holds.
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_hidden_states": (False,),
    "return_prompt_text": (False,),
    "return_prompt_token_ids": (False,),
    "return_meta_info": (False,),
    "return_cached_tokens_details": (False,),
    "return_routed_experts": (False,),
    "logprob_token_ids": (),
    "include_reasoning": (True,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "audio": (),
}
"""Of chats and completions, by name. Some are honoured by one of the two."""


def unserved(table: Mapping[str, Sequence[Any]]) -> Fields:
    """Return the fields of such a table."""
    return {name: one_of([None, *harmless]) for name, harmless in table.items()}
