"""What goes wrong on the caller's side."""

import grpc


class ClientError(Exception):
    """A call was refused or lost. status: the gRPC status; kind: what programs may switch on
    (docs of front/errors.py), None where the failure is not the server's."""

    def __init__(self, message: str, status: grpc.StatusCode, kind: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class LaunchError(RuntimeError):
    """A daemon did not become ready; the message has the end of what it wrote."""


def client_error(error: grpc.RpcError) -> ClientError:
    """The typed form of what grpc raised."""
    status = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    details = error.details() if isinstance(error, grpc.Call) else str(error)
    kind = None
    if isinstance(error, grpc.Call):
        for key, value in error.trailing_metadata() or ():
            if key == "tasuki-error-kind":
                kind = value if isinstance(value, str) else value.decode()
    return ClientError(f"{details or status.name} ({status.name})", status, kind)
