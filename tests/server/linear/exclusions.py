"""Functions that take text and have no entry, each with the reason.

A place with a star at its end stands for all places with this start. The module has values only.
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
_REFUSES = "refuses a picture before it reads any of it"
_SWAPS = "exchanges a picture's bytes for others, and reads none of them"
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
    _REFUSES: (
        "server/pictures/blind_pictures.py:BlindPictures*",
        "server/pictures/blind_pictures.py:BlindReader*",
        "server/pictures/blind_pictures.py:_refuse",
    ),
    _SWAPS: ("server/pictures/kept_pictures.py:_with_data",),
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
        "model/grammar/trials/client.py:GrammarTrials.check",
        "model/grammar/trials/client.py:GrammarTrials.close",
        "model/grammar/trials/client.py:GrammarTrials.give_up",
        "model/grammar/trials/client.py:GrammarTrials.of",
        "model/grammar/trials/client.py:GrammarTrials.verdict",
        "model/grammar/trials/client.py:_Link.__init__",
        "model/grammar/trials/client.py:_Link.ask",
        "model/grammar/trials/client.py:_Waiting.__init__",
        "model/grammar/trials/client.py:_is_text",
        "model/grammar/trials/client.py:TrialHost.__init__",
        "model/grammar/trials/client.py:_Watch._give_job",
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
        "server/grpc/generate_messages.py:with_text_rules",
        "server/text/grammars/asked_grammar.py:check_followable",
    ),
    "reads an error of llguidance, which has been cut to its excerpt of the source": (
        "model/grammar/compiled_grammar.py:_complaint",
    ),
    _ONCE: (
        "server/pictures/node_pictures.py:NodePictures.of_folder",
        "server/pictures/node_pictures.py:pictures_apart",
        "model/grammar/vocabulary.py:UnfinishedTokens.__init__",
        "model/grammar/vocabulary.py:UnfinishedTokens.of",
        "model/grammar/vocabulary.py:_lacking",
        "model/grammar/vocabulary.py:bytes_by_id",
        "model/grammar/vocabulary.py:_token_bytes",
        "server/openai/routes.py:served_model",
        "server/openai/sampling.py:SamplingDefaults.load",
        "server/openai/sampling.py:_number",
        "server/text/rendering/chat_template.py:ChatTemplate.__init__",
        "server/text/rendering/chat_template.py:_special_names",
        "server/text/rendering/compiled_template.py:CompiledTemplate.__init__",
        "server/text/rendering/compiled_template.py:any_of",
        "server/text/rendering/compiled_template.py:_constant",
        "server/text/tokenizer.py:Tokenizer.__init__",
        "server/text/tokenizer.py:_parted",
        "server/text/tokenizer.py:_bytes_by_id",
    ),
    _HANDS_ON: (
        "server/grpc/services.py:AdminService.*",
        "server/grpc/services.py:InferenceService.*",
        "server/grpc/session_service.py:TurnService.*",
        "server/grpc/session_service.py:SessionService.*",
        "server/smg/service.py:GatewayService.*",
        "server/smg/generate_messages.py:has_grammar",
        "server/openai/generation.py:ServedModel.read.<locals>.of_this_model",
        "server/openai/generation.py:ServedModel.take_apart",
        "server/openai/routes.py:TokenHandlers._answer",
        "server/responses/endpoints/background.py:BackgroundResponses.*",
        "server/responses/conversations.py:_read_*",
        "server/responses/conversations.py:_metadata",
        "server/responses/conversations.py:_page",
        "server/responses/endpoints/routes.py:StoredHandlers._send",
        "server/responses/endpoints/response_socket.py:ResponseSocket.*",
        "server/responses/endpoints/response_socket.py:_ended",
        "server/responses/endpoints/response_socket.py:SocketReply.*",
    ),
    _CROSSES: (
        "engine/apart/frames.py:submit_frame",
        "server/grpc/server.py:Bridge.*",
        "server/grpc/server.py:_Crossing.*",
        "server/grpc/server.py:_bridged*",
        "server/grpc/server.py:_as_it_is",
        "server/grpc/interceptors.py:_Malformed.*",
        "server/grpc/interceptors.py:refusing.*",
        "server/grpc/interceptors.py:method_of",
        "server/grpc/interceptors.py:_awaitable*",
        "server/grpc/interceptors.py:_tolerant.*",
        "server/grpc/interceptors.py:_guarded_*",
        "server/grpc/interceptors.py:_checked*",
    ),
    _METADATA: (
        "server/grpc/interceptors.py:grpc_caller",
        "server/grpc/interceptors.py:_values",
    ),
    _SHORT: (
        "server/openai/weight_routes.py:mode_of",
        "server/grpc/generate_messages.py:_seconds",
        "server/grpc/generate_messages.py:read_targets",
        "server/text/text_codec.py:WorkThreads.run",
        "server/text/chat_renderer.py:placed_budget",
        "server/responses/endpoints/routes.py:_not_found",
        "server/responses/stored_responses.py:ResponseStore.delete",
        "server/responses/endpoints/background.py:not_in_background",
        "server/responses/conversations.py:Conversation.found",
        "server/responses/conversations.py:Conversation.named",
        "server/responses/conversations.py:Conversation.without",
        "server/responses/conversations.py:ConversationStore.delete",
        "server/responses/endpoints/response_socket.py:previous_id",
        "server/responses/endpoints/response_socket.py:SocketTurns.drop",
        "server/responses/stored_responses.py:ResponseStore._drop",
    ),
    "reads values of over 16 KiB, which small inputs are not; test_growth.py has larger ones": (
        "server/text/json_reading.py:is_json",
        "server/text/parsing/parameter_types.py:_long_holder",
    ),
    "renders and reads conversations of its own, once for each set of variables": (
        "server/text/rendering/chat_template.py:TurnEnds._*",
        "server/text/rendering/chat_template.py:_goes_on*",
    ),
    "hands a stored call's text to read_arguments, which has an entry": (),
    "makes a stored turn of messages that an entry reads; only tests call it": (
        "server/responses/stored_responses.py:StoredTurn.of",
    ),
    "passes on addresses of 4,096 characters at most, and reads no content": (
        "server/openai/generation.py:ServedModel._fetched",
        "server/pictures/fetching/fetcher.py:*",
        "server/pictures/fetching/getter.py:CheckedResolver.resolve",
        "server/pictures/fetching/request_addresses.py:fetch_all*",
        "server/pictures/fetching/worker.py:*",
        # The answer of a resolver.
        "server/pictures/fetching/addresses.py:check_global",
    ),
    _OPERATOR: (
        "server/openai/routes.py:ModelHandlers._card",
        "server/grpc/server.py:Server.__init__",
        "server/grpc/server.py:Server._there",
        "server/grpc/server.py:start_server",
        "server/grpc/server.py:start_private_server",
        "server/grpc/interceptors.py:_unimplemented",
        "server/smg/service.py:archive_chunks",
    ),
    _CACHE: (
        "server/smg/kv_events.py:GatewayEvents.__init__",
        "server/smg/kv_events.py:GatewayEvents._batch",
        "server/smg/kv_events.py:block_hash",
        "server/smg/kv_events.py:namespace_of",
        "server/smg/kv_events.py:UsableBlocks.__init__",
        "server/smg/kv_events.py:UsableBlocks._announce",
        "server/smg/kv_events.py:UsableBlocks._withdraw",
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
