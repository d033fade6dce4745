from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_ACCEPTED: _ClassVar[Phase]
    PHASE_GRANTED: _ClassVar[Phase]
    PHASE_READY: _ClassVar[Phase]
    PHASE_DONE: _ClassVar[Phase]
    PHASE_VERIFIED: _ClassVar[Phase]
PHASE_UNSPECIFIED: Phase
PHASE_ACCEPTED: Phase
PHASE_GRANTED: Phase
PHASE_READY: Phase
PHASE_DONE: Phase
PHASE_VERIFIED: Phase

class HandoverTimeline(_message.Message):
    __slots__ = ("sender", "receiver")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    sender: SenderTrack
    receiver: ReceiverTrack
    def __init__(self, sender: _Optional[_Union[SenderTrack, _Mapping]] = ..., receiver: _Optional[_Union[ReceiverTrack, _Mapping]] = ...) -> None: ...

class PhaseMark(_message.Message):
    __slots__ = ("phase", "at")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    at: float
    def __init__(self, phase: _Optional[_Union[Phase, str]] = ..., at: _Optional[float] = ...) -> None: ...

class SenderTrack(_message.Message):
    __slots__ = ("phases", "windows")
    PHASES_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    phases: _containers.RepeatedCompositeFieldContainer[PhaseMark]
    windows: _containers.RepeatedCompositeFieldContainer[SentWindow]
    def __init__(self, phases: _Optional[_Iterable[_Union[PhaseMark, _Mapping]]] = ..., windows: _Optional[_Iterable[_Union[SentWindow, _Mapping]]] = ...) -> None: ...

class SentWindow(_message.Message):
    __slots__ = ("sequence", "first_layer", "layers_finished", "first_page", "pages", "carries_state", "bytes", "begun_at", "posted_at", "flushed_at")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    CARRIES_STATE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BEGUN_AT_FIELD_NUMBER: _ClassVar[int]
    POSTED_AT_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_AT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    first_layer: int
    layers_finished: _containers.RepeatedScalarFieldContainer[float]
    first_page: int
    pages: int
    carries_state: bool
    bytes: int
    begun_at: float
    posted_at: float
    flushed_at: float
    def __init__(self, sequence: _Optional[int] = ..., first_layer: _Optional[int] = ..., layers_finished: _Optional[_Iterable[float]] = ..., first_page: _Optional[int] = ..., pages: _Optional[int] = ..., carries_state: bool = ..., bytes: _Optional[int] = ..., begun_at: _Optional[float] = ..., posted_at: _Optional[float] = ..., flushed_at: _Optional[float] = ...) -> None: ...

class ReceiverTrack(_message.Message):
    __slots__ = ("phases", "windows", "waits")
    PHASES_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    phases: _containers.RepeatedCompositeFieldContainer[PhaseMark]
    windows: _containers.RepeatedCompositeFieldContainer[LandedWindow]
    waits: _containers.RepeatedCompositeFieldContainer[BarrierWait]
    def __init__(self, phases: _Optional[_Iterable[_Union[PhaseMark, _Mapping]]] = ..., windows: _Optional[_Iterable[_Union[LandedWindow, _Mapping]]] = ..., waits: _Optional[_Iterable[_Union[BarrierWait, _Mapping]]] = ...) -> None: ...

class LandedWindow(_message.Message):
    __slots__ = ("sequence", "landed_at", "verified_at")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LANDED_AT_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_AT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    landed_at: float
    verified_at: float
    def __init__(self, sequence: _Optional[int] = ..., landed_at: _Optional[float] = ..., verified_at: _Optional[float] = ...) -> None: ...

class BarrierWait(_message.Message):
    __slots__ = ("layer", "began_at", "ended_at")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    BEGAN_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    layer: int
    began_at: float
    ended_at: float
    def __init__(self, layer: _Optional[int] = ..., began_at: _Optional[float] = ..., ended_at: _Optional[float] = ...) -> None: ...
