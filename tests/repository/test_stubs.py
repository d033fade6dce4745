"""Tests of the stubs: they match their .proto files and run on the installed protobuf."""

from google.protobuf import __version__ as protobuf_version
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tasuki.proto import generate, handover_pb2, inference_pb2


def test_stubs_are_those_of_their_sources() -> None:
    assert generate.digests(generate.HERE) == generate.DIGESTS.read_text(), (
        "a .proto or a stub changed alone: run `make stubs`"
    )


def test_every_source_has_its_stubs() -> None:
    named = {line.split()[1] for line in generate.DIGESTS.read_text().splitlines()}
    for source in generate.HERE.glob("*.proto"):
        stem = source.stem
        assert {f"{stem}_pb2.py", f"{stem}_pb2.pyi", f"{stem}_pb2_grpc.py"} <= named


def test_stubs_describe_the_packages_on_this_runtime() -> None:
    assert int(protobuf_version.split(".")[0]) >= 5
    for stub, package in ((inference_pb2, "tasuki.v1"), (handover_pb2, "tasuki.handover.v1")):
        described = FileDescriptorProto.FromString(stub.DESCRIPTOR.serialized_pb)
        source = (generate.HERE / described.name.rsplit("/", 1)[1]).read_text()
        assert described.package == package
        for service in described.service:
            assert all(f"rpc {method.name}(" in source for method in service.method)
        assert all(f"message {message.name} " in source for message in described.message_type)
