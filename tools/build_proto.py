"""Write the descriptor beside serve/grpc's proto. Needs grpcio-tools; run it after every change of the proto."""

import sys
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).parents[1] / "serve" / "grpc" / "protos"
SOURCE = "tokloom/v1/inference.proto"


def build(to: Path) -> None:
    """Compile the proto, with its comments left out."""
    from grpc_tools import protoc

    include = files("grpc_tools") / "_proto"
    code = protoc.main(["protoc", f"-I{ROOT}", f"-I{include}", f"--descriptor_set_out={to}", SOURCE])
    if code:
        sys.exit(code)


if __name__ == "__main__":
    build(ROOT / SOURCE.replace(".proto", ".binpb"))
