from tasuki.proto import report_pb2 as _report_pb2
from tasuki.proto import timeline_pb2 as _timeline_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HeirOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEIR_OUTCOME_UNSPECIFIED: _ClassVar[HeirOutcome]
    HEIR_OUTCOME_TAKEN: _ClassVar[HeirOutcome]
    HEIR_OUTCOME_HELD: _ClassVar[HeirOutcome]
    HEIR_OUTCOME_DECLINED: _ClassVar[HeirOutcome]
    HEIR_OUTCOME_LOST: _ClassVar[HeirOutcome]
    HEIR_OUTCOME_CUT: _ClassVar[HeirOutcome]

class PictureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PICTURE_KIND_UNSPECIFIED: _ClassVar[PictureKind]
    PICTURE_KIND_IMAGE: _ClassVar[PictureKind]
    PICTURE_KIND_VIDEO: _ClassVar[PictureKind]

class ErrorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_KIND_UNSPECIFIED: _ClassVar[ErrorKind]
    ERROR_KIND_INVALID: _ClassVar[ErrorKind]
    ERROR_KIND_TOO_LONG: _ClassVar[ErrorKind]
    ERROR_KIND_DRAINING: _ClassVar[ErrorKind]
    ERROR_KIND_INTERNAL: _ClassVar[ErrorKind]
    ERROR_KIND_QUEUE_TIMEOUT: _ClassVar[ErrorKind]
    ERROR_KIND_NOT_HELD: _ClassVar[ErrorKind]
    ERROR_KIND_BUSY: _ClassVar[ErrorKind]

class Drain(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAIN_UNSPECIFIED: _ClassVar[Drain]
    DRAIN_DRAINED: _ClassVar[Drain]
    DRAIN_FORCED: _ClassVar[Drain]
HEIR_OUTCOME_UNSPECIFIED: HeirOutcome
HEIR_OUTCOME_TAKEN: HeirOutcome
HEIR_OUTCOME_HELD: HeirOutcome
HEIR_OUTCOME_DECLINED: HeirOutcome
HEIR_OUTCOME_LOST: HeirOutcome
HEIR_OUTCOME_CUT: HeirOutcome
PICTURE_KIND_UNSPECIFIED: PictureKind
PICTURE_KIND_IMAGE: PictureKind
PICTURE_KIND_VIDEO: PictureKind
ERROR_KIND_UNSPECIFIED: ErrorKind
ERROR_KIND_INVALID: ErrorKind
ERROR_KIND_TOO_LONG: ErrorKind
ERROR_KIND_DRAINING: ErrorKind
ERROR_KIND_INTERNAL: ErrorKind
ERROR_KIND_QUEUE_TIMEOUT: ErrorKind
ERROR_KIND_NOT_HELD: ErrorKind
ERROR_KIND_BUSY: ErrorKind
DRAIN_UNSPECIFIED: Drain
DRAIN_DRAINED: Drain
DRAIN_FORCED: Drain

class ConnectRequest(_message.Message):
    __slots__ = ("node", "contract", "lease_seconds", "pictures")
    class ContractEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class PicturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PICTURES_FIELD_NUMBER: _ClassVar[int]
    node: Node
    contract: _containers.ScalarMap[str, str]
    lease_seconds: float
    pictures: _containers.ScalarMap[str, str]
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., contract: _Optional[_Mapping[str, str]] = ..., lease_seconds: _Optional[float] = ..., pictures: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ConnectResponse(_message.Message):
    __slots__ = ("connected", "refused")
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    connected: Connected
    refused: Refusal
    def __init__(self, connected: _Optional[_Union[Connected, _Mapping]] = ..., refused: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "epoch", "process", "transport", "transport_metadata", "slabs", "transport_checksum", "ranks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_METADATA_FIELD_NUMBER: _ClassVar[int]
    SLABS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    epoch: bytes
    process: Process
    transport: str
    transport_metadata: bytes
    slabs: int
    transport_checksum: bytes
    ranks: int
    def __init__(self, name: _Optional[str] = ..., epoch: _Optional[bytes] = ..., process: _Optional[_Union[Process, _Mapping]] = ..., transport: _Optional[str] = ..., transport_metadata: _Optional[bytes] = ..., slabs: _Optional[int] = ..., transport_checksum: _Optional[bytes] = ..., ranks: _Optional[int] = ...) -> None: ...

class Process(_message.Message):
    __slots__ = ("boot_id", "pid_namespace", "pid", "start_ticks")
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    PID_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    boot_id: str
    pid_namespace: int
    pid: int
    start_ticks: int
    def __init__(self, boot_id: _Optional[str] = ..., pid_namespace: _Optional[int] = ..., pid: _Optional[int] = ..., start_ticks: _Optional[int] = ...) -> None: ...

class Connected(_message.Message):
    __slots__ = ("node", "connection_id", "lease_seconds", "pictures", "weights")
    class PicturesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PICTURES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    node: Node
    connection_id: str
    lease_seconds: float
    pictures: _containers.ScalarMap[str, str]
    weights: bytes
    def __init__(self, node: _Optional[_Union[Node, _Mapping]] = ..., connection_id: _Optional[str] = ..., lease_seconds: _Optional[float] = ..., pictures: _Optional[_Mapping[str, str]] = ..., weights: _Optional[bytes] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("differences",)
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    differences: _containers.RepeatedCompositeFieldContainer[Difference]
    def __init__(self, differences: _Optional[_Iterable[_Union[Difference, _Mapping]]] = ...) -> None: ...

class Difference(_message.Message):
    __slots__ = ("field", "ours", "theirs")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    OURS_FIELD_NUMBER: _ClassVar[int]
    THEIRS_FIELD_NUMBER: _ClassVar[int]
    field: str
    ours: str
    theirs: str
    def __init__(self, field: _Optional[str] = ..., ours: _Optional[str] = ..., theirs: _Optional[str] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("sequence", "received", "progress", "load", "leaves")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    received: int
    progress: Progress
    load: Load
    leaves: bool
    def __init__(self, sequence: _Optional[int] = ..., received: _Optional[int] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., leaves: bool = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("wait_seconds", "fixed_seconds", "token_seconds", "context_seconds", "pull_fixed_seconds", "pull_token_seconds", "stored_seconds", "others_wait_seconds")
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FIXED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PULL_FIXED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PULL_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STORED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    wait_seconds: float
    fixed_seconds: float
    token_seconds: float
    context_seconds: float
    pull_fixed_seconds: float
    pull_token_seconds: float
    stored_seconds: float
    others_wait_seconds: float
    def __init__(self, wait_seconds: _Optional[float] = ..., fixed_seconds: _Optional[float] = ..., token_seconds: _Optional[float] = ..., context_seconds: _Optional[float] = ..., pull_fixed_seconds: _Optional[float] = ..., pull_token_seconds: _Optional[float] = ..., stored_seconds: _Optional[float] = ..., others_wait_seconds: _Optional[float] = ...) -> None: ...

class TakeOverRequest(_message.Message):
    __slots__ = ("connection_id", "done", "declines")
    CONNECTION_ID_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    DECLINES_FIELD_NUMBER: _ClassVar[int]
    connection_id: str
    done: TakenOver
    declines: bool
    def __init__(self, connection_id: _Optional[str] = ..., done: _Optional[_Union[TakenOver, _Mapping]] = ..., declines: bool = ...) -> None: ...

class TakeOverResponse(_message.Message):
    __slots__ = ("state", "over")
    STATE_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    state: LeftState
    over: bool
    def __init__(self, state: _Optional[_Union[LeftState, _Mapping]] = ..., over: bool = ...) -> None: ...

class LeftState(_message.Message):
    __slots__ = ("number", "tokens", "salt", "known")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    number: int
    tokens: bytes
    salt: bytes
    known: bool
    def __init__(self, number: _Optional[int] = ..., tokens: _Optional[bytes] = ..., salt: _Optional[bytes] = ..., known: bool = ...) -> None: ...

class TakenOver(_message.Message):
    __slots__ = ("number", "outcome", "bytes", "heir")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    HEIR_FIELD_NUMBER: _ClassVar[int]
    number: int
    outcome: HeirOutcome
    bytes: int
    heir: str
    def __init__(self, number: _Optional[int] = ..., outcome: _Optional[_Union[HeirOutcome, str]] = ..., bytes: _Optional[int] = ..., heir: _Optional[str] = ...) -> None: ...

class UsableRequest(_message.Message):
    __slots__ = ("connection_id",)
    CONNECTION_ID_FIELD_NUMBER: _ClassVar[int]
    connection_id: str
    def __init__(self, connection_id: _Optional[str] = ...) -> None: ...

class UsableBatch(_message.Message):
    __slots__ = ("sequence", "snapshot", "removed", "stored")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    snapshot: bool
    removed: Prefixes
    stored: Prefixes
    def __init__(self, sequence: _Optional[int] = ..., snapshot: bool = ..., removed: _Optional[_Union[Prefixes, _Mapping]] = ..., stored: _Optional[_Union[Prefixes, _Mapping]] = ...) -> None: ...

class Prefixes(_message.Message):
    __slots__ = ("names", "parents", "tokens")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    names: bytes
    parents: bytes
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, names: _Optional[bytes] = ..., parents: _Optional[bytes] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("engine_seconds", "front_seconds")
    ENGINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FRONT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    engine_seconds: float
    front_seconds: float
    def __init__(self, engine_seconds: _Optional[float] = ..., front_seconds: _Optional[float] = ...) -> None: ...

class Renewal(_message.Message):
    __slots__ = ("connection_id", "sequence", "drained", "progress")
    CONNECTION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    connection_id: str
    sequence: int
    drained: _containers.RepeatedCompositeFieldContainer[DrainedPull]
    progress: Progress
    def __init__(self, connection_id: _Optional[str] = ..., sequence: _Optional[int] = ..., drained: _Optional[_Iterable[_Union[DrainedPull, _Mapping]]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class DrainedPull(_message.Message):
    __slots__ = ("room", "generation", "drain")
    ROOM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    room: int
    generation: int
    drain: Drain
    def __init__(self, room: _Optional[int] = ..., generation: _Optional[int] = ..., drain: _Optional[_Union[Drain, str]] = ...) -> None: ...

class ReceiverBatch(_message.Message):
    __slots__ = ("connection_id", "messages")
    CONNECTION_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    connection_id: str
    messages: _containers.RepeatedCompositeFieldContainer[ReceiverMessage]
    def __init__(self, connection_id: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[ReceiverMessage, _Mapping]]] = ...) -> None: ...

class SenderBatch(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[SenderMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[SenderMessage, _Mapping]]] = ...) -> None: ...

class ReceiverMessage(_message.Message):
    __slots__ = ("reserve", "grant", "abort", "pull_done", "pull_failed", "hang_up", "fetch", "room")
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    PULL_DONE_FIELD_NUMBER: _ClassVar[int]
    PULL_FAILED_FIELD_NUMBER: _ClassVar[int]
    HANG_UP_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    reserve: Reserve
    grant: Grant
    abort: Abort
    pull_done: PullDone
    pull_failed: PullFailed
    hang_up: HangUp
    fetch: Fetch
    room: int
    def __init__(self, reserve: _Optional[_Union[Reserve, _Mapping]] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., pull_done: _Optional[_Union[PullDone, _Mapping]] = ..., pull_failed: _Optional[_Union[PullFailed, _Mapping]] = ..., hang_up: _Optional[_Union[HangUp, _Mapping]] = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ..., room: _Optional[int] = ...) -> None: ...

class SenderMessage(_message.Message):
    __slots__ = ("queued", "accepted", "refused", "ready", "done", "failed", "aborted", "pull", "stop_pull", "closed", "held", "pictures_wanted", "room")
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    STOP_PULL_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PICTURES_WANTED_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    queued: Queued
    accepted: Accepted
    refused: Refused
    ready: Ready
    done: Done
    failed: Failed
    aborted: Aborted
    pull: Pull
    stop_pull: StopPull
    closed: Closed
    held: Held
    pictures_wanted: PicturesWanted
    room: int
    def __init__(self, queued: _Optional[_Union[Queued, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., aborted: _Optional[_Union[Aborted, _Mapping]] = ..., pull: _Optional[_Union[Pull, _Mapping]] = ..., stop_pull: _Optional[_Union[StopPull, _Mapping]] = ..., closed: _Optional[_Union[Closed, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., pictures_wanted: _Optional[_Union[PicturesWanted, _Mapping]] = ..., room: _Optional[int] = ...) -> None: ...

class HangUp(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Closed(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Reserve(_message.Message):
    __slots__ = ("ticket", "prompt", "by_gateway", "request_id", "traceparent", "pictures")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    BY_GATEWAY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PICTURES_FIELD_NUMBER: _ClassVar[int]
    ticket: Ticket
    prompt: bytes
    by_gateway: bool
    request_id: str
    traceparent: str
    pictures: _containers.RepeatedCompositeFieldContainer[PictureRun]
    def __init__(self, ticket: _Optional[_Union[Ticket, _Mapping]] = ..., prompt: _Optional[bytes] = ..., by_gateway: bool = ..., request_id: _Optional[str] = ..., traceparent: _Optional[str] = ..., pictures: _Optional[_Iterable[_Union[PictureRun, _Mapping]]] = ...) -> None: ...

class PictureRun(_message.Message):
    __slots__ = ("start", "rows", "columns", "kind", "orientation", "digest", "files")
    START_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ORIENTATION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    start: int
    rows: int
    columns: int
    kind: PictureKind
    orientation: str
    digest: bytes
    files: _containers.RepeatedCompositeFieldContainer[PictureFile]
    def __init__(self, start: _Optional[int] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ..., kind: _Optional[_Union[PictureKind, str]] = ..., orientation: _Optional[str] = ..., digest: _Optional[bytes] = ..., files: _Optional[_Iterable[_Union[PictureFile, _Mapping]]] = ...) -> None: ...

class PictureFile(_message.Message):
    __slots__ = ("sha256", "height", "width")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    height: int
    width: int
    def __init__(self, sha256: _Optional[bytes] = ..., height: _Optional[int] = ..., width: _Optional[int] = ...) -> None: ...

class PicturesWanted(_message.Message):
    __slots__ = ("generation", "pictures")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PICTURES_FIELD_NUMBER: _ClassVar[int]
    generation: int
    pictures: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, generation: _Optional[int] = ..., pictures: _Optional[_Iterable[int]] = ...) -> None: ...

class PicturePiece(_message.Message):
    __slots__ = ("connection_id", "room", "generation", "picture", "file", "length", "data")
    CONNECTION_ID_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    connection_id: str
    room: int
    generation: int
    picture: int
    file: int
    length: int
    data: bytes
    def __init__(self, connection_id: _Optional[str] = ..., room: _Optional[int] = ..., generation: _Optional[int] = ..., picture: _Optional[int] = ..., file: _Optional[int] = ..., length: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PicturesTaken(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("generation", "tokens", "salt")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    tokens: bytes
    salt: bytes
    def __init__(self, generation: _Optional[int] = ..., tokens: _Optional[bytes] = ..., salt: _Optional[bytes] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("room", "generation", "kv_matched", "sampling", "salt", "marks", "offered", "caller", "priority", "due_seconds", "message_end")
    ROOM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    KV_MATCHED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    OFFERED_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_END_FIELD_NUMBER: _ClassVar[int]
    room: int
    generation: int
    kv_matched: int
    sampling: Sampling
    salt: bytes
    marks: _containers.RepeatedScalarFieldContainer[int]
    offered: int
    caller: str
    priority: int
    due_seconds: float
    message_end: int
    def __init__(self, room: _Optional[int] = ..., generation: _Optional[int] = ..., kv_matched: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., salt: _Optional[bytes] = ..., marks: _Optional[_Iterable[int]] = ..., offered: _Optional[int] = ..., caller: _Optional[str] = ..., priority: _Optional[int] = ..., due_seconds: _Optional[float] = ..., message_end: _Optional[int] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop_token_ids", "ignore_eos", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens", "bad_words", "allowed_token_ids", "top_logprobs", "grammar", "thinking")
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
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
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
    logit_bias: _containers.RepeatedCompositeFieldContainer[TokenBias]
    min_tokens: int
    bad_words: _containers.RepeatedCompositeFieldContainer[TokenSequence]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: int
    grammar: Grammar
    thinking: ThinkingBudget
    def __init__(self, max_new_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Iterable[_Union[TokenBias, _Mapping]]] = ..., min_tokens: _Optional[int] = ..., bad_words: _Optional[_Iterable[_Union[TokenSequence, _Mapping]]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[int] = ..., grammar: _Optional[_Union[Grammar, _Mapping]] = ..., thinking: _Optional[_Union[ThinkingBudget, _Mapping]] = ...) -> None: ...

class ThinkingBudget(_message.Message):
    __slots__ = ("most", "closing", "tag", "opening")
    MOST_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    most: int
    closing: _containers.RepeatedScalarFieldContainer[int]
    tag: int
    opening: int
    def __init__(self, most: _Optional[int] = ..., closing: _Optional[_Iterable[int]] = ..., tag: _Optional[int] = ..., opening: _Optional[int] = ...) -> None: ...

class Grammar(_message.Message):
    __slots__ = ("kind", "source", "closing", "opening", "gap")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    kind: str
    source: str
    closing: int
    opening: int
    gap: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kind: _Optional[str] = ..., source: _Optional[str] = ..., closing: _Optional[int] = ..., opening: _Optional[int] = ..., gap: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenBias(_message.Message):
    __slots__ = ("token", "bias")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token: int
    bias: float
    def __init__(self, token: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class TokenSequence(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("generation", "first_page", "pages", "slot")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    first_page: int
    pages: _containers.RepeatedScalarFieldContainer[int]
    slot: int
    def __init__(self, generation: _Optional[int] = ..., first_page: _Optional[int] = ..., pages: _Optional[_Iterable[int]] = ..., slot: _Optional[int] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class Queued(_message.Message):
    __slots__ = ("position", "wait_seconds")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    position: int
    wait_seconds: float
    def __init__(self, position: _Optional[int] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Refused(_message.Message):
    __slots__ = ("kind", "reason")
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: ErrorKind
    reason: str
    def __init__(self, kind: _Optional[_Union[ErrorKind, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("generation", "token", "logprob", "margin", "hit", "pulled", "tail_seconds", "route", "top")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    HIT_FIELD_NUMBER: _ClassVar[int]
    PULLED_FIELD_NUMBER: _ClassVar[int]
    TAIL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    token: int
    logprob: float
    margin: float
    hit: _report_pb2.HitBreakdown
    pulled: _report_pb2.Pulled
    tail_seconds: float
    route: _report_pb2.Route
    top: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, generation: _Optional[int] = ..., token: _Optional[int] = ..., logprob: _Optional[float] = ..., margin: _Optional[float] = ..., hit: _Optional[_Union[_report_pb2.HitBreakdown, _Mapping]] = ..., pulled: _Optional[_Union[_report_pb2.Pulled, _Mapping]] = ..., tail_seconds: _Optional[float] = ..., route: _Optional[_Union[_report_pb2.Route, _Mapping]] = ..., top: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token", "logprob")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token: int
    logprob: float
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("generation", "windows", "report", "pull")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    generation: int
    windows: _containers.RepeatedCompositeFieldContainer[Window]
    report: _report_pb2.TransferReport
    pull: _timeline_pb2.HandoverTimeline
    def __init__(self, generation: _Optional[int] = ..., windows: _Optional[_Iterable[_Union[Window, _Mapping]]] = ..., report: _Optional[_Union[_report_pb2.TransferReport, _Mapping]] = ..., pull: _Optional[_Union[_timeline_pb2.HandoverTimeline, _Mapping]] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("sequence", "first_layer", "end_layer", "first_page", "pages", "carries_state", "digest")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    END_LAYER_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    CARRIES_STATE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    first_layer: int
    end_layer: int
    first_page: int
    pages: int
    carries_state: bool
    digest: int
    def __init__(self, sequence: _Optional[int] = ..., first_layer: _Optional[int] = ..., end_layer: _Optional[int] = ..., first_page: _Optional[int] = ..., pages: _Optional[int] = ..., carries_state: bool = ..., digest: _Optional[int] = ...) -> None: ...

class Pull(_message.Message):
    __slots__ = ("generation", "tokens", "first_page", "pages", "slot")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    tokens: int
    first_page: int
    pages: _containers.RepeatedScalarFieldContainer[int]
    slot: int
    def __init__(self, generation: _Optional[int] = ..., tokens: _Optional[int] = ..., first_page: _Optional[int] = ..., pages: _Optional[_Iterable[int]] = ..., slot: _Optional[int] = ...) -> None: ...

class StopPull(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class PullDone(_message.Message):
    __slots__ = ("generation", "windows", "report")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    windows: _containers.RepeatedCompositeFieldContainer[Window]
    report: _report_pb2.TransferReport
    def __init__(self, generation: _Optional[int] = ..., windows: _Optional[_Iterable[_Union[Window, _Mapping]]] = ..., report: _Optional[_Union[_report_pb2.TransferReport, _Mapping]] = ...) -> None: ...

class PullFailed(_message.Message):
    __slots__ = ("generation", "reason", "drain")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    generation: int
    reason: str
    drain: Drain
    def __init__(self, generation: _Optional[int] = ..., reason: _Optional[str] = ..., drain: _Optional[_Union[Drain, str]] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("reason", "drain")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    reason: str
    drain: Drain
    def __init__(self, reason: _Optional[str] = ..., drain: _Optional[_Union[Drain, str]] = ...) -> None: ...

class Aborted(_message.Message):
    __slots__ = ("drain",)
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    drain: Drain
    def __init__(self, drain: _Optional[_Union[Drain, str]] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("room", "generation", "connection_id")
    ROOM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_ID_FIELD_NUMBER: _ClassVar[int]
    room: int
    generation: int
    connection_id: str
    def __init__(self, room: _Optional[int] = ..., generation: _Optional[int] = ..., connection_id: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("drain",)
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    drain: Drain
    def __init__(self, drain: _Optional[_Union[Drain, str]] = ...) -> None: ...
