"""How busy the machine is with work that is not ours: measurements on a shared machine need to know."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def busy_seconds() -> float:
    """Processor seconds spent by everyone since boot."""
    fields = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (fields[0] + fields[1] + fields[2] + fields[5] + fields[6] + fields[7]) / _TICKS


def own_seconds(pids: Sequence[int]) -> float:
    """Processor seconds spent by these processes."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def main_thread_seconds(pid: int) -> float:
    """Processor seconds spent by a process's first thread."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def peak_memory_mb(pid: int) -> int:
    """Peak resident memory of a process, MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) // 1024
    return 0


class ForeignLoad:
    """The share of all processors that others used between `start` and `share`."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._begin = (busy_seconds(), own_seconds(pids), time.monotonic())

    def share(self) -> float:
        """0 to 1."""
        busy, own, begin = self._begin
        elapsed = time.monotonic() - begin
        foreign = busy_seconds() - busy - (own_seconds(self._pids) - own)
        return max(0.0, foreign / (elapsed * (os.cpu_count() or 1)))


def wait_quiet(pids: Sequence[int], patience: float = 10.0, limit: float = 0.1) -> bool:
    """Wait for a second in which others use less than `limit`; False when patience ends."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        load = ForeignLoad(pids)
        time.sleep(1.0)
        if load.share() < limit:
            return True
    return False


def describe() -> dict[str, str | int]:
    """What a reader of a measurement wants to know of the machine."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [int(line.split()[1]) // 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "processor": names[0] if names else "",
        "processors": os.cpu_count() or 1,
        "memory_mb": memory[0] if memory else 0,
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
