"""GGUFFile: header and tensors of a GGUF file (format version 2 or 3), checked against the file's size before use.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Block types are decoded by the `gguf` package.
"""

import mmap
import struct
from pathlib import Path
from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from tokloom.sdk import CheckpointError

_SCALARS: Final = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
#: ggml type -> (name, elements per block, bytes per block) of the types that are read
TYPES: Final = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
_MAX_COUNT: Final = 1 << 24

Value = int | float | bool | str | list["Value"]


@frozen
class TensorEntry:
    """Where a tensor is. `shape` in torch order (slowest first)."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    nbytes: int


class GGUFFile:
    """An opened file: `metadata` and `tensors` by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Value] = {}
        self.tensors: dict[str, TensorEntry] = {}
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot be read: {error}", subject=str(path), remedy="Check the path") from None
        self._at = 0
        self._read_header()

    def _fail(self, problem: str) -> CheckpointError:
        return CheckpointError(
            problem, subject=str(self.path), remedy="The file is damaged or incomplete: get it again"
        )

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise self._fail(f"ends at byte {len(self._data)} inside its header, which needs byte {end}")
        chunk = self._data[self._at : end]
        self._at = end
        return chunk

    def _scalar(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(code, self._take(struct.calcsize(code)))[0]
        return value

    def _count(self, what: str) -> int:
        value = int(self._scalar("<Q"))
        if value > min(_MAX_COUNT, len(self._data)):
            raise self._fail(f"claims {value} {what}")
        return value

    def _string(self) -> str:
        return self._take(self._count("bytes in a string")).decode("utf-8", errors="replace")

    def _value(self, kind: int, depth: int = 0) -> Value:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY and depth < 4:
            inner = int(self._scalar("<I"))
            count = self._count("array elements")
            if inner in _SCALARS and inner != 7:
                code = _SCALARS[inner]
                packed = self._take(count * struct.calcsize(code))
                values: list[Value] = np.frombuffer(packed, dtype=np.dtype(code)).tolist()
                return values
            return [self._value(inner, depth + 1) for _ in range(count)]
        raise self._fail(f"has a metadata value of unknown type {kind}")

    def _read_header(self) -> None:
        if self._take(4) != b"GGUF":
            raise CheckpointError(
                "is not a GGUF file (wrong magic)", subject=str(self.path), remedy="Give a .gguf file or a folder"
            )
        version = int(self._scalar("<I"))
        if version not in (2, 3):
            raise CheckpointError(
                f"has GGUF version {version}",
                subject=str(self.path),
                remedy="Versions 2 and 3 (little endian) are read",
            )
        tensors = self._count("tensors")
        entries = self._count("metadata entries")
        for _ in range(entries):
            key = self._string()
            self.metadata[key] = self._value(int(self._scalar("<I")))
        found = [self._tensor_entry() for _ in range(tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 16:
            raise self._fail(f"has alignment {alignment!r}")
        base = -(-self._at // alignment) * alignment
        for entry in found:
            placed = TensorEntry(entry.name, entry.shape, entry.type, base + entry.offset, entry.nbytes)
            if placed.offset + placed.nbytes > len(self._data):
                raise self._fail(
                    f"is truncated: tensor {entry.name} ends at byte {placed.offset + placed.nbytes} "
                    f"and the file has {len(self._data)}"
                )
            if entry.name in self.tensors:
                raise self._fail(f"has tensor {entry.name} twice")
            self.tensors[entry.name] = placed

    def _tensor_entry(self) -> TensorEntry:
        name = self._string()
        dims = int(self._scalar("<I"))
        if not 0 < dims <= 4:
            raise self._fail(f"gives tensor {name!r} {dims} dimensions")
        shape = tuple(self._count(f"elements along an axis of {name!r}") for _ in range(dims))[::-1]
        kind = int(self._scalar("<I"))
        offset = int(self._scalar("<Q"))
        if kind not in TYPES:
            raise CheckpointError(
                f"tensor {name} has type {_type_name(kind)}, which is not read",
                subject=str(self.path),
                remedy=f"Supported: {', '.join(entry[0] for entry in TYPES.values())}",
            )
        elements = 1
        for extent in shape:
            elements *= extent
        _, block, size = TYPES[kind]
        if shape[-1] % block:
            raise self._fail(f"gives tensor {name} rows of {shape[-1]} elements in blocks of {block}")
        return TensorEntry(name, shape, kind, offset, elements // block * size)

    def read(self, name: str, part: int = -1) -> NDArray[np.generic]:
        """A tensor decoded: float32, or float16 as stored, or bfloat16 bits as uint16, in torch order. With `part` only
        that entry of the first axis.
        """
        entry = self.tensors[name]
        shape, nbytes, offset = entry.shape, entry.nbytes, entry.offset
        if part >= 0:
            nbytes //= shape[0]
            offset += part * nbytes
            shape = shape[1:]
        raw = np.frombuffer(self._data, dtype=np.uint8, count=nbytes, offset=offset)
        kind = TYPES[entry.type][0]
        if kind in ("F32", "F16", "BF16"):
            dtype = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[kind]
            return raw.view(dtype).reshape(shape)
        from gguf import GGMLQuantizationType, dequantize

        block, size = TYPES[entry.type][1:]
        rows = raw.reshape(*shape[:-1], shape[-1] // block * size)
        decoded: NDArray[np.generic] = dequantize(rows, GGMLQuantizationType(entry.type))
        return decoded.reshape(shape)


def _type_name(kind: int) -> str:
    from gguf import GGMLQuantizationType

    try:
        return GGMLQuantizationType(kind).name
    except ValueError:
        return str(kind)
