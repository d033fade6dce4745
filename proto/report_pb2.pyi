from tasuki.proto import timeline_pb2 as _timeline_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HitBreakdown(_message.Message):
    __slots__ = ("prompt_tokens", "kv_tokens", "usable_tokens", "causes", "checkpoint_source", "lost", "in_pages", "template_changed_at", "loaded")
    class CausesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LoadedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    USABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CAUSES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_SOURCE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    IN_PAGES_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    kv_tokens: int
    usable_tokens: int
    causes: _containers.ScalarMap[str, int]
    checkpoint_source: str
    lost: LostState
    in_pages: HitBreakdown
    template_changed_at: int
    loaded: _containers.ScalarMap[str, int]
    def __init__(self, prompt_tokens: _Optional[int] = ..., kv_tokens: _Optional[int] = ..., usable_tokens: _Optional[int] = ..., causes: _Optional[_Mapping[str, int]] = ..., checkpoint_source: _Optional[str] = ..., lost: _Optional[_Union[LostState, _Mapping]] = ..., in_pages: _Optional[_Union[HitBreakdown, _Mapping]] = ..., template_changed_at: _Optional[int] = ..., loaded: _Optional[_Mapping[str, int]] = ...) -> None: ...

class LostState(_message.Message):
    __slots__ = ("tokens", "slabs_since", "eviction")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SLABS_SINCE_FIELD_NUMBER: _ClassVar[int]
    EVICTION_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    slabs_since: float
    eviction: Eviction
    def __init__(self, tokens: _Optional[int] = ..., slabs_since: _Optional[float] = ..., eviction: _Optional[_Union[Eviction, _Mapping]] = ...) -> None: ...

class Eviction(_message.Message):
    __slots__ = ("sequence", "kind", "checkpoint_kind", "tokens", "slabs", "score", "taken_by")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_KIND_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SLABS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    TAKEN_BY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    kind: str
    checkpoint_kind: str
    tokens: int
    slabs: float
    score: float
    taken_by: str
    def __init__(self, sequence: _Optional[int] = ..., kind: _Optional[str] = ..., checkpoint_kind: _Optional[str] = ..., tokens: _Optional[int] = ..., slabs: _Optional[float] = ..., score: _Optional[float] = ..., taken_by: _Optional[str] = ...) -> None: ...

class TransferReport(_message.Message):
    __slots__ = ("bytes", "windows", "pages", "hidden_seconds", "exposed_seconds", "track")
    BYTES_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRACK_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    windows: int
    pages: int
    hidden_seconds: float
    exposed_seconds: float
    track: _timeline_pb2.SenderTrack
    def __init__(self, bytes: _Optional[int] = ..., windows: _Optional[int] = ..., pages: _Optional[int] = ..., hidden_seconds: _Optional[float] = ..., exposed_seconds: _Optional[float] = ..., track: _Optional[_Union[_timeline_pb2.SenderTrack, _Mapping]] = ...) -> None: ...

class Pulled(_message.Message):
    __slots__ = ("tokens", "bytes", "seconds")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    bytes: int
    seconds: float
    def __init__(self, tokens: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("choice", "estimates")
    class EstimatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATES_FIELD_NUMBER: _ClassVar[int]
    choice: str
    estimates: _containers.ScalarMap[str, float]
    def __init__(self, choice: _Optional[str] = ..., estimates: _Optional[_Mapping[str, float]] = ...) -> None: ...

class PrefillChoice(_message.Message):
    __slots__ = ("reason", "bids", "weighed", "expected_tokens", "regret_seconds", "moved_from")
    REASON_FIELD_NUMBER: _ClassVar[int]
    BIDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHED_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REGRET_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MOVED_FROM_FIELD_NUMBER: _ClassVar[int]
    reason: str
    bids: _containers.RepeatedCompositeFieldContainer[PrefillBid]
    weighed: int
    expected_tokens: int
    regret_seconds: float
    moved_from: str
    def __init__(self, reason: _Optional[str] = ..., bids: _Optional[_Iterable[_Union[PrefillBid, _Mapping]]] = ..., weighed: _Optional[int] = ..., expected_tokens: _Optional[int] = ..., regret_seconds: _Optional[float] = ..., moved_from: _Optional[str] = ...) -> None: ...

class PrefillBid(_message.Message):
    __slots__ = ("node", "address", "usable_tokens", "prefill_seconds", "wait_seconds", "exposed_seconds", "cost", "chosen")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    USABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    node: str
    address: str
    usable_tokens: int
    prefill_seconds: float
    wait_seconds: float
    exposed_seconds: float
    cost: float
    chosen: bool
    def __init__(self, node: _Optional[str] = ..., address: _Optional[str] = ..., usable_tokens: _Optional[int] = ..., prefill_seconds: _Optional[float] = ..., wait_seconds: _Optional[float] = ..., exposed_seconds: _Optional[float] = ..., cost: _Optional[float] = ..., chosen: bool = ...) -> None: ...
