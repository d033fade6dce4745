"""Functions that take text and have no entry, each with the reason.

A place that ends in a star stands for all that begin so. Values.
"""

from collections.abc import Mapping

from .walk import Place

_TRIED = "only the kernel bounds what a grammar costs: it is tried and compiled by llguidance"
_SOURCE = "passes a grammar's source on, which Grammar bounds to 256 KiB, and reads none of it"
_TAGS = "reads the tags of the format, once, as the module is loaded"
_ONCE = "reads the checkpoint's own files, once, before the node serves"
_HANDS_ON = "hands the message to a function that has an entry, and reads a few short fields itself"
_CROSSES = "passes whole messages between two loops or to their handler, and reads none of them"
_METADATA = "reads metadata and headers, which gRPC and aiohttp bound to some KiB"
_SHORT = "reads fields of a bounded size: numbers, names of 256 characters"
_OPERATOR = "an operator's own settings or a node's own names, no caller's text"
_CACHE = "reads the cache's own events and digests, no caller's text"

_BY_REASON: Mapping[str, tuple[Place, ...]] = {
    _TRIED: (
        "model/grammar/compiled_grammar.py:_Tokenizer.__call__",
        "model/grammar/compiled_grammar.py:compiled",
        "model/grammar/grammar_compiler.py:_timed",
        "model/grammar/compiled_grammar.py:_source",
        "model/grammar/compiled_grammar.py:_schema",
        "model/grammar/constraint.py:Constraint.__init__",
    ),
    _TAGS: (
        "server/text/grammars/tagged_text.py:_either_case",
        "server/text/grammars/tagged_text.py:_letter",
        "server/text/grammars/tagged_text.py:_letters",
    ),
    _SOURCE: (
        "model/grammar/grammar_compiler.py:GrammarCompiler._advance",
        "model/grammar/grammar_compiler.py:GrammarCompiler._fresh",
        "model/grammar/grammar_compiler.py:GrammarCompiler._renewals",
        "model/grammar/grammar_compiler.py:GrammarCompiler.constraint",
        "model/grammar/grammar_compiler.py:GrammarCompiler.give_up",
        "model/grammar/grammar_compiler.py:GrammarCompiler.ready",
        "model/grammar/grammar_compiler.py:_key",
        "model/grammar/trials/client.py:GrammarTrials._remember",
        "model/grammar/trials/client.py:GrammarTrials.check",
        "model/grammar/trials/client.py:GrammarTrials.close",
        "model/grammar/trials/client.py:GrammarTrials.give_up",
        "model/grammar/trials/client.py:GrammarTrials.of",
        "model/grammar/trials/client.py:GrammarTrials.verdict",
        "model/grammar/trials/client.py:_Link.__init__",
        "model/grammar/trials/client.py:_Link.ask",
        "model/grammar/trials/client.py:_Waiting.__init__",
        "model/grammar/trials/client.py:_is_text",
        "model/grammar/trials/host.py:TrialHost.__init__",
        "model/grammar/trials/host.py:_Watch._give_job",
        "model/grammar/trials/messages.py:FrameBuffer.feed",
        "model/grammar/trials/queue.py:TrialQueue._drop",
        "model/grammar/trials/queue.py:TrialQueue._line_bytes",
        "model/grammar/trials/queue.py:TrialQueue._remove_from_line",
        "model/grammar/trials/queue.py:TrialQueue._room_for",
        "model/grammar/trials/queue.py:TrialQueue.ask",
        "model/grammar/trials/queue.py:_Use.add",
        "model/grammar/trials/queue.py:_Use.of",
        "model/grammar/trials/server.py:_named",
        "model/grammar/trials/server.py:_unavailable",
        "model/grammar/trials/server.py:main",
        "model/grammar/trials/trial.py:_verdict_of",
        "server/grpc/request_reader.py:with_text_rules",
        "server/text/grammars/asked_grammar.py:check_followable",
    ),
    "reads an error of llguidance, which has been cut to its excerpt of the source": (
        "model/grammar/compiled_grammar.py:_complaint",
    ),
    _ONCE: (
        "model/grammar/unfinished_tokens.py:UnfinishedTokens.__init__",
        "model/grammar/unfinished_tokens.py:UnfinishedTokens.of",
        "model/grammar/unfinished_tokens.py:_lacking",
        "model/grammar/vocabulary.py:bytes_by_id",
        "model/grammar/vocabulary.py:_token_bytes",
        "server/openai/routes.py:served_model",
        "server/openai/sampling_defaults.py:SamplingDefaults.load",
        "server/openai/sampling_defaults.py:_number",
        "server/text/chat_template.py:ChatTemplate.__init__",
        "server/text/chat_template.py:_special_names",
        "server/text/rendering/compiled_template.py:CompiledTemplate.__init__",
        "server/text/rendering/special_token_guard.py:any_of",
        "server/text/rendering/template_marks.py:_constant",
        "server/text/tokenizer.py:Tokenizer.__init__",
        "server/text/tokenizer.py:_parted",
        "server/text/tokenizer.py:_bytes_by_id",
    ),
    _HANDS_ON: (
        "server/grpc/admin_service.py:AdminService.*",
        "server/grpc/inference_service.py:InferenceService.*",
        "server/grpc/session_service.py:TurnService.*",
        "server/grpc/session_service.py:SessionService.*",
        "server/smg/service.py:GatewayService.*",
        "server/smg/request_reader.py:has_grammar",
        "server/openai/generation.py:ServedModel.read.<locals>.of_this_model",
        "server/openai/generation.py:ServedModel.take_apart",
        "server/responses/background/background_responses.py:*",
        "server/responses/conversations/routes.py:*",
        "server/responses/routes.py:StoredHandlers._send",
        "server/responses/websocket/response_socket.py:*",
        "server/responses/websocket/socket_reply.py:SocketReply.*",
    ),
    _CROSSES: (
        "server/grpc/loop_bridge.py:*",
        "server/grpc/malformed_requests.py:*",
    ),
    _METADATA: (
        "server/grpc/auth.py:grpc_caller",
        "server/grpc/auth.py:_values",
    ),
    _SHORT: (
        "model/grammar/vocabulary.py:name_of_bytes",
        "server/grpc/request_reader.py:read_targets",
        "server/responses/routes.py:_not_found",
        "server/responses/stored_responses.py:ResponseStore.delete",
        "server/responses/background/handlers.py:not_in_background",
        "server/responses/conversations/conversation.py:Conversation.found",
        "server/responses/conversations/conversation.py:Conversation.named",
        "server/responses/conversations/conversation.py:Conversation.without",
        "server/responses/conversations/conversation_store.py:ConversationStore.delete",
        "server/responses/websocket/create_message.py:previous_id",
        "server/responses/websocket/socket_turns.py:SocketTurns.drop",
        "server/responses/stored_responses.py:ResponseStore._drop",
    ),
    "reads values of over 16 KiB, which small inputs are not; test_growth.py has larger ones": (
        "server/text/json_bounds.py:is_json",
        "server/text/parsing/parameter_types.py:_long_holder",
    ),
    "renders and reads conversations of its own, once for each set of variables": (
        "server/text/rendering/turn_ends.py:TurnEnds._*",
        "server/text/rendering/turn_ends.py:_goes_on*",
    ),
    "looks at the roles of messages, and halves their number": (
        "server/responses/compaction/compact_request.py:_newer_half",
    ),
    "hands a stored call's text to read_arguments, which has an entry": (),
    "makes a stored turn of messages that an entry reads; only tests call it": (
        "server/responses/stored_responses.py:StoredTurn.of",
    ),
    _OPERATOR: (
        "server/grpc/server.py:Server.__init__",
        "server/grpc/server.py:Server._there",
        "server/grpc/server.py:start_server",
        "server/grpc/server.py:start_private_server",
        "server/grpc/unimplemented.py:_unimplemented",
        "server/smg/tokenizer_archive.py:archive_chunks",
    ),
    _CACHE: (
        "server/smg/kv_events.py:GatewayEvents.__init__",
        "server/smg/kv_events.py:GatewayEvents._batch",
        "server/smg/kv_events.py:block_hash",
        "server/smg/usable_blocks.py:namespace_of",
        "server/smg/usable_blocks.py:UsableBlocks.__init__",
        "server/smg/usable_blocks.py:UsableBlocks._announce",
        "server/smg/usable_blocks.py:UsableBlocks._withdraw",
    ),
}

EXCLUDED: Mapping[Place, str] = {
    place: reason for reason, places in _BY_REASON.items() for place in places
}


def matching(pattern: Place, place: Place) -> bool:
    if pattern.endswith("*"):
        return place.startswith(pattern[:-1])
    return place == pattern


def is_excluded(place: Place) -> bool:
    return any(matching(pattern, place) for pattern in EXCLUDED)
