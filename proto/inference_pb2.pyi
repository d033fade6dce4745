from tasuki.proto import report_pb2 as _report_pb2
from tasuki.proto import timeline_pb2 as _timeline_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union
from tasuki.proto.report_pb2 import HitBreakdown as HitBreakdown
from tasuki.proto.report_pb2 import LostState as LostState
from tasuki.proto.report_pb2 import Eviction as Eviction
from tasuki.proto.report_pb2 import TransferReport as TransferReport
from tasuki.proto.report_pb2 import Pulled as Pulled
from tasuki.proto.report_pb2 import Route as Route
from tasuki.proto.report_pb2 import PrefillChoice as PrefillChoice
from tasuki.proto.report_pb2 import PrefillBid as PrefillBid

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_ABORT: _ClassVar[FinishReason]

class NodeRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_ROLE_UNSPECIFIED: _ClassVar[NodeRole]
    NODE_ROLE_PREFILL: _ClassVar[NodeRole]
    NODE_ROLE_DECODE: _ClassVar[NodeRole]

class PrefillNodeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREFILL_NODE_STATE_UNSPECIFIED: _ClassVar[PrefillNodeState]
    PREFILL_NODE_STATE_CONNECTED: _ClassVar[PrefillNodeState]
    PREFILL_NODE_STATE_LOST: _ClassVar[PrefillNodeState]
    PREFILL_NODE_STATE_REFUSED: _ClassVar[PrefillNodeState]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_ABORT: FinishReason
NODE_ROLE_UNSPECIFIED: NodeRole
NODE_ROLE_PREFILL: NodeRole
NODE_ROLE_DECODE: NodeRole
PREFILL_NODE_STATE_UNSPECIFIED: PrefillNodeState
PREFILL_NODE_STATE_CONNECTED: PrefillNodeState
PREFILL_NODE_STATE_LOST: PrefillNodeState
PREFILL_NODE_STATE_REFUSED: PrefillNodeState

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "content", "parts")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    parts: _containers.RepeatedCompositeFieldContainer[MessagePart]
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[MessagePart, _Mapping]]] = ...) -> None: ...

class MessagePart(_message.Message):
    __slots__ = ("text", "picture", "clip")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    text: str
    picture: Picture
    clip: Clip
    def __init__(self, text: _Optional[str] = ..., picture: _Optional[_Union[Picture, _Mapping]] = ..., clip: _Optional[_Union[Clip, _Mapping]] = ...) -> None: ...

class Picture(_message.Message):
    __slots__ = ("file", "detail")
    FILE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    file: bytes
    detail: str
    def __init__(self, file: _Optional[bytes] = ..., detail: _Optional[str] = ...) -> None: ...

class Clip(_message.Message):
    __slots__ = ("frames", "fps")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedScalarFieldContainer[bytes]
    fps: float
    def __init__(self, frames: _Optional[_Iterable[bytes]] = ..., fps: _Optional[float] = ...) -> None: ...

class Messages(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, items: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop_token_ids", "ignore_eos", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens", "bad_words", "allowed_token_ids", "top_logprobs", "thinking_token_budget", "json_schema", "regex", "grammar", "choices")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    THINKING_TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    min_tokens: int
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: int
    thinking_token_budget: int
    json_schema: str
    regex: str
    grammar: str
    choices: Choices
    def __init__(self, max_new_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., min_tokens: _Optional[int] = ..., bad_words: _Optional[_Iterable[str]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[int] = ..., thinking_token_budget: _Optional[int] = ..., json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., grammar: _Optional[str] = ..., choices: _Optional[_Union[Choices, _Mapping]] = ...) -> None: ...

class Choices(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class Targets(_message.Message):
    __slots__ = ("first_token_seconds", "per_token_seconds", "answer_seconds")
    FIRST_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PER_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    first_token_seconds: float
    per_token_seconds: float
    answer_seconds: float
    def __init__(self, first_token_seconds: _Optional[float] = ..., per_token_seconds: _Optional[float] = ..., answer_seconds: _Optional[float] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "text", "token_ids", "messages", "sampling", "cache_salt", "marks", "priority", "n", "prompt_logprobs", "targets", "prediction")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    text: str
    token_ids: TokenIds
    messages: Messages
    sampling: Sampling
    cache_salt: bytes
    marks: _containers.RepeatedScalarFieldContainer[int]
    priority: int
    n: int
    prompt_logprobs: int
    targets: Targets
    prediction: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., messages: _Optional[_Union[Messages, _Mapping]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., cache_salt: _Optional[bytes] = ..., marks: _Optional[_Iterable[int]] = ..., priority: _Optional[int] = ..., n: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., targets: _Optional[_Union[Targets, _Mapping]] = ..., prediction: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("chunk", "finished", "prompt_logprobs", "choice")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    chunk: TokenChunk
    finished: Finished
    prompt_logprobs: PromptLogprobs
    choice: int
    def __init__(self, chunk: _Optional[_Union[TokenChunk, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ..., choice: _Optional[int] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("first", "logprobs", "ranks", "top")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    first: int
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    top: _containers.RepeatedCompositeFieldContainer[TopLogprobs]
    def __init__(self, first: _Optional[int] = ..., logprobs: _Optional[_Iterable[float]] = ..., ranks: _Optional[_Iterable[int]] = ..., top: _Optional[_Iterable[_Union[TopLogprobs, _Mapping]]] = ...) -> None: ...

class TokenChunk(_message.Message):
    __slots__ = ("token_ids", "text", "logprobs", "margins", "top")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MARGINS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    margins: _containers.RepeatedScalarFieldContainer[float]
    top: _containers.RepeatedCompositeFieldContainer[TopLogprobs]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[float]] = ..., margins: _Optional[_Iterable[float]] = ..., top: _Optional[_Iterable[_Union[TopLogprobs, _Mapping]]] = ...) -> None: ...

class TopLogprobs(_message.Message):
    __slots__ = ("token_ids", "logprobs")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "usage", "weights")
    REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    usage: Usage
    weights: _containers.RepeatedCompositeFieldContainer[WeightsRun]
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., weights: _Optional[_Iterable[_Union[WeightsRun, _Mapping]]] = ...) -> None: ...

class WeightsRun(_message.Message):
    __slots__ = ("first", "version")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    first: int
    version: str
    def __init__(self, first: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "hit", "transfer", "prefilled_on", "local_fallback", "time_to_first_token_seconds", "seconds", "pulled", "route", "prefill_choice", "targets", "drafted_tokens", "accepted_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens", "drafts", "pictures")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    PREFILLED_ON_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FALLBACK_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    PULLED_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PREDICTION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_PREDICTION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    PICTURES_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    hit: _report_pb2.HitBreakdown
    transfer: _report_pb2.TransferReport
    prefilled_on: str
    local_fallback: bool
    time_to_first_token_seconds: float
    seconds: float
    pulled: _report_pb2.Pulled
    route: _report_pb2.Route
    prefill_choice: _report_pb2.PrefillChoice
    targets: Targets
    drafted_tokens: int
    accepted_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    drafts: _containers.RepeatedCompositeFieldContainer[Drafts]
    pictures: Pictures
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., hit: _Optional[_Union[_report_pb2.HitBreakdown, _Mapping]] = ..., transfer: _Optional[_Union[_report_pb2.TransferReport, _Mapping]] = ..., prefilled_on: _Optional[str] = ..., local_fallback: bool = ..., time_to_first_token_seconds: _Optional[float] = ..., seconds: _Optional[float] = ..., pulled: _Optional[_Union[_report_pb2.Pulled, _Mapping]] = ..., route: _Optional[_Union[_report_pb2.Route, _Mapping]] = ..., prefill_choice: _Optional[_Union[_report_pb2.PrefillChoice, _Mapping]] = ..., targets: _Optional[_Union[Targets, _Mapping]] = ..., drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., accepted_prediction_tokens: _Optional[int] = ..., rejected_prediction_tokens: _Optional[int] = ..., drafts: _Optional[_Iterable[_Union[Drafts, _Mapping]]] = ..., pictures: _Optional[_Union[Pictures, _Mapping]] = ...) -> None: ...

class Pictures(_message.Message):
    __slots__ = ("count", "image_tokens", "video_tokens", "usable_tokens", "each")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VIDEO_TOKENS_FIELD_NUMBER: _ClassVar[int]
    USABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EACH_FIELD_NUMBER: _ClassVar[int]
    count: int
    image_tokens: int
    video_tokens: int
    usable_tokens: int
    each: _containers.RepeatedCompositeFieldContainer[PictureUse]
    def __init__(self, count: _Optional[int] = ..., image_tokens: _Optional[int] = ..., video_tokens: _Optional[int] = ..., usable_tokens: _Optional[int] = ..., each: _Optional[_Iterable[_Union[PictureUse, _Mapping]]] = ...) -> None: ...

class PictureUse(_message.Message):
    __slots__ = ("outcome", "kind", "place", "start", "tokens", "bytes", "decode_seconds", "resize_seconds", "tower_seconds", "wait_seconds", "decode_at", "tower_at", "ready_at")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DECODE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESIZE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOWER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_AT_FIELD_NUMBER: _ClassVar[int]
    TOWER_AT_FIELD_NUMBER: _ClassVar[int]
    READY_AT_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    kind: str
    place: str
    start: int
    tokens: int
    bytes: int
    decode_seconds: float
    resize_seconds: float
    tower_seconds: float
    wait_seconds: float
    decode_at: float
    tower_at: float
    ready_at: float
    def __init__(self, outcome: _Optional[str] = ..., kind: _Optional[str] = ..., place: _Optional[str] = ..., start: _Optional[int] = ..., tokens: _Optional[int] = ..., bytes: _Optional[int] = ..., decode_seconds: _Optional[float] = ..., resize_seconds: _Optional[float] = ..., tower_seconds: _Optional[float] = ..., wait_seconds: _Optional[float] = ..., decode_at: _Optional[float] = ..., tower_at: _Optional[float] = ..., ready_at: _Optional[float] = ...) -> None: ...

class Drafts(_message.Message):
    __slots__ = ("source", "drafted", "accepted")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    source: str
    drafted: _containers.RepeatedScalarFieldContainer[int]
    accepted: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, source: _Optional[str] = ..., drafted: _Optional[_Iterable[int]] = ..., accepted: _Optional[_Iterable[int]] = ...) -> None: ...

class LifeMark(_message.Message):
    __slots__ = ("state", "at_seconds")
    STATE_FIELD_NUMBER: _ClassVar[int]
    AT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    state: str
    at_seconds: float
    def __init__(self, state: _Optional[str] = ..., at_seconds: _Optional[float] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionOpenRequest(_message.Message):
    __slots__ = ("cache_salt",)
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    cache_salt: bytes
    def __init__(self, cache_salt: _Optional[bytes] = ...) -> None: ...

class SessionOpenResponse(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class SessionAppendRequest(_message.Message):
    __slots__ = ("session_id", "text", "token_ids", "messages", "answer")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    text: str
    token_ids: TokenIds
    messages: Messages
    answer: TokenIds
    def __init__(self, session_id: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., messages: _Optional[_Union[Messages, _Mapping]] = ..., answer: _Optional[_Union[TokenIds, _Mapping]] = ...) -> None: ...

class SessionAppendResponse(_message.Message):
    __slots__ = ("appended_tokens", "total_tokens")
    APPENDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    appended_tokens: int
    total_tokens: int
    def __init__(self, appended_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ...) -> None: ...

class SessionGenerateRequest(_message.Message):
    __slots__ = ("session_id", "request_id", "sampling", "priority", "targets")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    request_id: str
    sampling: Sampling
    priority: int
    targets: Targets
    def __init__(self, session_id: _Optional[str] = ..., request_id: _Optional[str] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., priority: _Optional[int] = ..., targets: _Optional[_Union[Targets, _Mapping]] = ...) -> None: ...

class SessionForkRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class SessionForkResponse(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class SessionCloseRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class SessionCloseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionLoadResponse(_message.Message):
    __slots__ = ("step_seconds", "busy", "free_kv", "draining")
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    FREE_KV_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    step_seconds: float
    busy: float
    free_kv: float
    draining: bool
    def __init__(self, step_seconds: _Optional[float] = ..., busy: _Optional[float] = ..., free_kv: _Optional[float] = ..., draining: bool = ...) -> None: ...

class SessionHandBackRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class SessionHandBackResponse(_message.Message):
    __slots__ = ("pulled",)
    PULLED_FIELD_NUMBER: _ClassVar[int]
    pulled: _report_pb2.Pulled
    def __init__(self, pulled: _Optional[_Union[_report_pb2.Pulled, _Mapping]] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("pages", "slots", "slabs", "tree", "lost", "requests", "integrity", "sessions", "prefill_nodes", "windows", "role", "http_address")
    class PagesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class SlotsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class SlabsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TreeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LostEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RequestsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class WindowsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PAGES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLABS_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    INTEGRITY_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NODES_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    pages: _containers.ScalarMap[str, int]
    slots: _containers.ScalarMap[str, int]
    slabs: _containers.ScalarMap[str, int]
    tree: _containers.ScalarMap[str, int]
    lost: _containers.ScalarMap[str, int]
    requests: _containers.ScalarMap[str, int]
    integrity: str
    sessions: int
    prefill_nodes: _containers.RepeatedCompositeFieldContainer[PrefillNode]
    windows: _containers.ScalarMap[str, int]
    role: NodeRole
    http_address: str
    def __init__(self, pages: _Optional[_Mapping[str, int]] = ..., slots: _Optional[_Mapping[str, int]] = ..., slabs: _Optional[_Mapping[str, int]] = ..., tree: _Optional[_Mapping[str, int]] = ..., lost: _Optional[_Mapping[str, int]] = ..., requests: _Optional[_Mapping[str, int]] = ..., integrity: _Optional[str] = ..., sessions: _Optional[int] = ..., prefill_nodes: _Optional[_Iterable[_Union[PrefillNode, _Mapping]]] = ..., windows: _Optional[_Mapping[str, int]] = ..., role: _Optional[_Union[NodeRole, str]] = ..., http_address: _Optional[str] = ...) -> None: ...

class PrefillNode(_message.Message):
    __slots__ = ("address", "name", "state", "differences", "engine_seconds", "front_seconds", "usable_prefixes", "wait_seconds")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    ENGINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FRONT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    USABLE_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    address: str
    name: str
    state: PrefillNodeState
    differences: _containers.RepeatedCompositeFieldContainer[ContractDifference]
    engine_seconds: float
    front_seconds: float
    usable_prefixes: int
    wait_seconds: float
    def __init__(self, address: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[_Union[PrefillNodeState, str]] = ..., differences: _Optional[_Iterable[_Union[ContractDifference, _Mapping]]] = ..., engine_seconds: _Optional[float] = ..., front_seconds: _Optional[float] = ..., usable_prefixes: _Optional[int] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class ContractDifference(_message.Message):
    __slots__ = ("field", "ours", "theirs")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    OURS_FIELD_NUMBER: _ClassVar[int]
    THEIRS_FIELD_NUMBER: _ClassVar[int]
    field: str
    ours: str
    theirs: str
    def __init__(self, field: _Optional[str] = ..., ours: _Optional[str] = ..., theirs: _Optional[str] = ...) -> None: ...

class TreeRequest(_message.Message):
    __slots__ = ("limit", "under", "prefix", "cache_salt")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    UNDER_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    under: str
    prefix: TokenIds
    cache_salt: bytes
    def __init__(self, limit: _Optional[int] = ..., under: _Optional[str] = ..., prefix: _Optional[_Union[TokenIds, _Mapping]] = ..., cache_salt: _Optional[bytes] = ...) -> None: ...

class TreeResponse(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[TreeNode]
    def __init__(self, nodes: _Optional[_Iterable[_Union[TreeNode, _Mapping]]] = ...) -> None: ...

class TreeNode(_message.Message):
    __slots__ = ("name", "above", "depth", "tokens", "children", "state", "tails", "leases", "state_pins", "protected", "unused", "standing", "hidden")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TAILS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    STATE_PINS_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_FIELD_NUMBER: _ClassVar[int]
    UNUSED_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    above: int
    depth: int
    tokens: int
    children: int
    state: str
    tails: int
    leases: int
    state_pins: int
    protected: bool
    unused: int
    standing: TreeStanding
    hidden: TreeStanding
    def __init__(self, name: _Optional[str] = ..., above: _Optional[int] = ..., depth: _Optional[int] = ..., tokens: _Optional[int] = ..., children: _Optional[int] = ..., state: _Optional[str] = ..., tails: _Optional[int] = ..., leases: _Optional[int] = ..., state_pins: _Optional[int] = ..., protected: bool = ..., unused: _Optional[int] = ..., standing: _Optional[_Union[TreeStanding, _Mapping]] = ..., hidden: _Optional[_Union[TreeStanding, _Mapping]] = ...) -> None: ...

class TreeStanding(_message.Message):
    __slots__ = ("tokens", "nodes", "checkpoints")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    nodes: int
    checkpoints: int
    def __init__(self, tokens: _Optional[int] = ..., nodes: _Optional[int] = ..., checkpoints: _Optional[int] = ...) -> None: ...

class ChangeRoleRequest(_message.Message):
    __slots__ = ("role", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    role: NodeRole
    settings: _containers.ScalarMap[str, str]
    def __init__(self, role: _Optional[_Union[NodeRole, str]] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ChangeRoleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushResponse(_message.Message):
    __slots__ = ("dropped",)
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    dropped: int
    def __init__(self, dropped: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("request_id", "ended_seconds_ago", "finished", "rejected", "handover", "life", "took", "pull", "part_bytes")
    class PartBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ENDED_SECONDS_AGO_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    HANDOVER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    TOOK_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    ended_seconds_ago: float
    finished: Finished
    rejected: str
    handover: _timeline_pb2.HandoverTimeline
    life: _containers.RepeatedCompositeFieldContainer[LifeMark]
    took: _containers.RepeatedCompositeFieldContainer[_report_pb2.Eviction]
    pull: _timeline_pb2.HandoverTimeline
    part_bytes: _containers.ScalarMap[str, int]
    def __init__(self, request_id: _Optional[str] = ..., ended_seconds_ago: _Optional[float] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., rejected: _Optional[str] = ..., handover: _Optional[_Union[_timeline_pb2.HandoverTimeline, _Mapping]] = ..., life: _Optional[_Iterable[_Union[LifeMark, _Mapping]]] = ..., took: _Optional[_Iterable[_Union[_report_pb2.Eviction, _Mapping]]] = ..., pull: _Optional[_Union[_timeline_pb2.HandoverTimeline, _Mapping]] = ..., part_bytes: _Optional[_Mapping[str, int]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UndrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UndrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("stream",)
    class Stream(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STREAM_UNSPECIFIED: _ClassVar[WatchEventsRequest.Stream]
        STREAM_ALL: _ClassVar[WatchEventsRequest.Stream]
        STREAM_USABLE: _ClassVar[WatchEventsRequest.Stream]
    STREAM_UNSPECIFIED: WatchEventsRequest.Stream
    STREAM_ALL: WatchEventsRequest.Stream
    STREAM_USABLE: WatchEventsRequest.Stream
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: WatchEventsRequest.Stream
    def __init__(self, stream: _Optional[_Union[WatchEventsRequest.Stream, str]] = ...) -> None: ...

class WatchEventsResponse(_message.Message):
    __slots__ = ("sequence", "snapshot", "gap", "events", "more")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    snapshot: bool
    gap: EventGap
    events: _containers.RepeatedCompositeFieldContainer[CacheEvent]
    more: bool
    def __init__(self, sequence: _Optional[int] = ..., snapshot: bool = ..., gap: _Optional[_Union[EventGap, _Mapping]] = ..., events: _Optional[_Iterable[_Union[CacheEvent, _Mapping]]] = ..., more: bool = ...) -> None: ...

class EventGap(_message.Message):
    __slots__ = ("first_lost", "resync_from")
    FIRST_LOST_FIELD_NUMBER: _ClassVar[int]
    RESYNC_FROM_FIELD_NUMBER: _ClassVar[int]
    first_lost: int
    resync_from: int
    def __init__(self, first_lost: _Optional[int] = ..., resync_from: _Optional[int] = ...) -> None: ...

class CacheEvent(_message.Message):
    __slots__ = ("sequence", "kind", "tokens", "prefix", "parent", "namespace", "place")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    kind: str
    tokens: int
    prefix: bytes
    parent: bytes
    namespace: bytes
    place: int
    def __init__(self, sequence: _Optional[int] = ..., kind: _Optional[str] = ..., tokens: _Optional[int] = ..., prefix: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., namespace: _Optional[bytes] = ..., place: _Optional[int] = ...) -> None: ...
