"""Reflection answers the queries of generic tools (grpcurl, ghz, buf curl), in v1 and v1alpha."""

from collections.abc import Iterator

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2 as messages

from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S

SERVICE = "purgatory.v1.PurgatoryService"
SERVICE_FILE = "purgatory/v1/purgatory_service.proto"
VERSIONS = ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"]


@pytest.fixture(scope="module")
def channel(shared_daemon: DaemonProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(shared_daemon.address) as opened:
        yield opened


def ask(channel: grpc.Channel, version: str, **requests: str) -> list[messages.ServerReflectionResponse]:
    """The answers of one version of reflection to these requests: they are equal on the wire."""
    call = channel.stream_stream(
        f"/{version}/ServerReflectionInfo",
        messages.ServerReflectionRequest.SerializeToString,
        messages.ServerReflectionResponse.FromString,
    )
    sent = [messages.ServerReflectionRequest(**{field: value}) for field, value in requests.items()]
    answers = list(call(iter(sent), timeout=PATIENCE_S))
    assert [answer.original_request for answer in answers] == sent
    return answers


def files_of(answer: messages.ServerReflectionResponse) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    data = answer.file_descriptor_response.file_descriptor_proto
    files = [descriptor_pb2.FileDescriptorProto.FromString(one) for one in data]
    return {file.name: file for file in files}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("symbol", ["", ".Wait", ".StreamResults", "Receipt", "Receipt.batch_id", "GoingAway.Reason"])
def test_every_kind_of_symbol_leads_to_its_file_with_all_that_it_imports(
    channel: grpc.Channel, version: str, symbol: str
) -> None:
    name = f"purgatory.v1.{symbol}" if symbol[:1].isalpha() else f"{SERVICE}{symbol}"
    [answer] = ask(channel, version, file_containing_symbol=name)
    files = files_of(answer)
    assert SERVICE_FILE in files
    assert {name for file in files.values() for name in file.dependency} <= set(files)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("symbol", [f"{SERVICE}.Nothing", "purgatory.v1.Nothing.Wait", "Wait", ".", ""])
def test_unknown_symbol_is_not_found_and_the_stream_goes_on(channel: grpc.Channel, version: str, symbol: str) -> None:
    first, second = ask(channel, version, file_containing_symbol=symbol, file_by_filename=SERVICE_FILE)
    assert first.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert SERVICE_FILE in files_of(second)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_listed_service_can_be_described(channel: grpc.Channel, version: str) -> None:
    [listed] = ask(channel, version, list_services="")
    names = [service.name for service in listed.list_services_response.service]
    assert set(names) == {SERVICE, "grpc.health.v1.Health", *VERSIONS}
    for name in names:
        [answer] = ask(channel, version, file_containing_symbol=name)
        assert name in {
            f"{file.package}.{service.name}" for file in files_of(answer).values() for service in file.service
        }


def test_files_say_where_generated_code_goes(channel: grpc.Channel) -> None:
    [answer] = ask(channel, VERSIONS[0], file_by_filename=SERVICE_FILE)
    ours = [file.options for name, file in files_of(answer).items() if name.startswith("purgatory/")]
    assert ours
    assert all(one.go_package and one.java_package and one.java_multiple_files for one in ours)
