"""Devices: what tensors live on, how launches are ordered, and how much memory there is.

This is the only file of the core that knows device types by name.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray

from tokloom.sdk import CompositionError, DeviceInfo

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Handle(Protocol[T_co]):
    """A launch in flight."""

    def result(self) -> T_co:
        """Wait for the launch and return what it computed; raises what it raised. May be called again."""
        ...


class Stream(Protocol):
    """Launches run in the order they were submitted; a later one sees everything an earlier one wrote."""

    def submit(self, launch: Callable[[], T]) -> Handle[T]: ...


class _Ready(Generic[T]):
    def __init__(self, value: T | None, error: BaseException | None) -> None:
        self._value = value
        self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


class InlineStream:
    """Runs a launch when it is submitted. On an asynchronous device the launch only queues kernels; reading its
    result on the host waits for them.
    """

    def submit(self, launch: Callable[[], T]) -> Handle[T]:
        try:
            return _Ready(launch(), None)
        except Exception as error:  # belongs to whoever asks for the result
            return _Ready(None, error)


class LazyStream:
    """Runs a launch when its result, or that of a later one, is asked for: whatever else touches pages in between
    (transfers, early reuse) does so before it. Makes missing fences visible without an asynchronous device.
    """

    def __init__(self) -> None:
        self._queue: list[_Lazy[object]] = []

    def submit(self, launch: Callable[[], T]) -> Handle[T]:
        handle = _Lazy(self, launch)
        self._queue.append(handle)  # type: ignore[arg-type]
        return handle

    def run_until(self, last: "_Lazy[T]") -> None:
        while last.ready is None:
            self._queue.pop(0).run()


class _Lazy(Generic[T]):
    def __init__(self, stream: LazyStream, launch: Callable[[], T]) -> None:
        self._stream = stream
        self._launch = launch
        self.ready: Handle[T] | None = None

    def run(self) -> None:
        self.ready = InlineStream().submit(self._launch)

    def result(self) -> T:
        self._stream.run_until(self)
        assert self.ready is not None
        return self.ready.result()


class Graph(Protocol[T_co]):
    """A recorded launch. `replay` runs it again over the same buffers, whose content may have changed."""

    def replay(self) -> T_co: ...


class _CalledGraph(Generic[T]):
    """A recording on a device without graphs: replaying calls the function again."""

    def __init__(self, record: Callable[[], T]) -> None:
        self.replay = record


class _CudaGraph(Generic[T]):
    def __init__(self, record: Callable[[], T]) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # lazy initialisation must not be recorded
                record()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = record()

    def replay(self) -> T:
        self._graph.replay()
        return self._result


@frozen
class Device:
    """A device as an engine uses it."""

    info: DeviceInfo
    stream: Stream

    @property
    def is_host(self) -> bool:
        """Whether tensors live in host memory and operators run when they are called."""
        return self.info.type == "cpu"

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.info.name)

    def upload(self, array: "NDArray[np.generic]") -> torch.Tensor:
        """The array as a tensor on the device; in host memory it is shared, not copied."""
        tensor = torch.from_numpy(array)
        return tensor if self.is_host else tensor.to(self.info.name, non_blocking=True)

    def capture(self, record: Callable[[], T]) -> Graph[T]:
        """Record what `record` launches."""
        return _CudaGraph(record) if self.info.type == "cuda" else _CalledGraph(record)

    def dtype(self, name: str) -> torch.dtype:
        """The torch dtype called `name`."""
        return TORCH_DTYPES[name]


TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "float64",
        "float32",
        "bfloat16",
        "float16",
        "float8_e4m3fn",
        "int64",
        "int32",
        "int8",
        "uint8",
    )
}


def largest(rows: torch.Tensor) -> tuple[list[float], list[int]]:
    """The largest value of each row of `[R, V]` and where it stands first. NaN counts as larger than all."""
    if rows.device.type == "cpu":  # numpy searches ten times as fast
        array = rows.numpy()
        ids: list[int] = array.argmax(-1).tolist()
        return [array.item(row, at) for row, at in enumerate(ids)], ids
    found = rows.argmax(-1)
    return rows.gather(1, found[:, None])[:, 0].tolist(), found.tolist()


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy in host memory, safe to keep."""
    return tensor.to("cpu", copy=True).contiguous()


def resolve(name: str, threads: int = 0) -> Device:
    """The device called `auto`, or by a torch device string. `threads` 0 takes the processors this process may use.

    Raises CompositionError for a device that does not exist here.
    """
    if name == "auto":
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise CompositionError(
            f"unknown device {name!r}", subject="engine.device", remedy="Use auto, cpu, cuda or cuda:N"
        ) from None
    count = threads or available_processors()
    if device.type == "cpu":
        return Device(
            DeviceInfo(type="cpu", name="cpu", threads=count, memory_bytes=available_memory()), InlineStream()
        )
    if device.type == "cuda":
        index = device.index or 0
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise CompositionError(
                f"device {name!r} is not present", subject="engine.device", remedy='Use device = "auto" or "cpu"'
            )
        memory = torch.cuda.get_device_properties(index).total_memory
        info = DeviceInfo(type="cuda", name=f"cuda:{index}", threads=count, memory_bytes=memory)
        return Device(info, InlineStream())
    raise CompositionError(f"device type {device.type!r} is not supported", subject="engine.device", remedy="Use auto")


def available_processors() -> int:
    """Processors this process may run on, limited by a container's quota (cgroup v2)."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return count


def available_memory() -> int:
    """Bytes of host memory, limited by a container's limit (cgroup v2)."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if text != "max":
            total = min(total, int(text))
    except (OSError, ValueError):
        pass
    return total
