"""Server reflection for generic tools (grpcurl, ghz, buf curl), as v1 and v1alpha.

The two versions are equal on the wire, so v1 is the v1alpha service under another name.
"""

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1ALPHA: Final[ServiceDescriptor] = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]

POOL: Final[Any] = descriptor_pool.Default()


def _v1() -> ServiceDescriptor:
    """Return v1alpha's file, renamed."""
    name = reflection_pb2.DESCRIPTOR.name.replace("v1alpha", "v1")
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = name, file.package.replace("v1alpha", "v1")
    old, new = f".{reflection_pb2.DESCRIPTOR.package}.", f".{file.package}."
    # References to types are full names, with the package, so renaming the file is not enough.
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(old, new)
    for method in file.service[0].method:
        method.input_type = method.input_type.replace(old, new)
        method.output_type = method.output_type.replace(old, new)
    POOL.AddSerializedFile(file.SerializeToString())
    found: ServiceDescriptor = POOL.FindServiceByName(f"{file.package}.{file.service[0].name}")
    return found


V1: Final[ServiceDescriptor] = _v1()


def reflection_servicer(names: Iterable[str]) -> reflection.aio.ReflectionServicer:
    """Return a servicer for the services of these names, and for both versions of reflection itself."""
    return reflection.aio.ReflectionServicer((*names, V1.full_name, V1ALPHA.full_name), pool=PoolWithMethods())


class PoolWithMethods:
    """The default pool, which also finds the file of a method. Python's own pool finds every symbol except methods."""

    def FindFileContainingSymbol(self, name: str) -> FileDescriptor:  # noqa: N802 - the pool's names
        try:
            found: FileDescriptor = POOL.FindFileContainingSymbol(name)
        except KeyError:
            # Generic tools ask for a method by its full name, as in "describe package.Service.Method".
            found = POOL.FindMethodByName(name).containing_service.file
        return found

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - its other methods
        return getattr(POOL, name)
