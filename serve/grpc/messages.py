"""Message classes of `tokloom.v1`, made from the descriptor beside the proto.

Code that protoc generates refuses runtimes older than itself; a descriptor does not.
"""

from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE: Final = "tokloom.v1.Inference"


def _load() -> dict[str, Any]:
    data = (files("tokloom.serve.grpc") / "protos" / "tokloom" / "v1" / "inference.binpb").read_bytes()
    described = descriptor_pb2.FileDescriptorSet.FromString(data)
    pool = descriptor_pool.Default()
    found: dict[str, Any] = {}
    for file in described.file:
        pool.Add(file)  # once more is fine: the content is the same
        for message in file.message_type:
            full = f"{file.package}.{message.name}"
            found[message.name] = message_factory.GetMessageClass(pool.FindMessageTypeByName(full))
    return found


_CLASSES: Final = _load()

GenerateRequest: Final = _CLASSES["GenerateRequest"]
GenerateEvent: Final = _CLASSES["GenerateEvent"]
HealthRequest: Final = _CLASSES["HealthRequest"]
HealthResponse: Final = _CLASSES["HealthResponse"]
InfoRequest: Final = _CLASSES["InfoRequest"]
InfoResponse: Final = _CLASSES["InfoResponse"]
