"""A small job that counts, on the GPU or the CPU, and can prove that it never lost its place.

`python -m gpuckpt.demo_job --log FILE [--device auto|gpu|cpu]` appends `tick N value V` to FILE
five times a second. N is a counter, V a hash over the whole history of a buffer that every tick
rewrites; both live in the job's memory (4 MiB of the GPU's) and nowhere else, and `expected(N)`
computes V from nothing. A job that was restored a tick too early or late, or with one wrong word,
cannot hide it. The GPU part needs the driver and cuda-python, no compiler and no framework.

It holds nothing but its log: stdin, stdout and stderr are /dev/null, so that it can be dumped.
SIGTERM ends it politely, which is how a process that holds a restored CUDA state must be ended.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INTERVAL: Final = 0.2  # seconds from tick to tick
WORDS: Final = {"gpu": 512 * 1024, "cpu": 8 * 1024}  # of 8 bytes; plain Python is slower
MASK: Final = 2**64 - 1
SEED: Final = 0x9E3779B97F4A7C15  # word i starts as i * SEED
FACTOR, STEP = 0x5851F42D4C957F2D, 0x14057B7EF767814F  # each tick: word * FACTOR + STEP
BASE: Final = 0x100000001B3  # each tick: hash * BASE + sum of word i * (2 i + 1)
BLOCK: Final = 256

# Two kernels: `step` rewrites the words and sums them up, `fold` adds the sum to the hash and
# counts. The cell is counter, hash, sum. Assembled by the driver, for sm_70 and everything newer.
PTX: Final = f"""
.version 7.0
.target sm_70
.address_size 64

.visible .entry step(.param .u64 words, .param .u32 count, .param .u64 cell)
{{
    .reg .pred %outside;
    .reg .u32 %block, %size, %index, %count;
    .reg .u64 %words, %place, %word, %factor, %step, %weight, %cell;
    mov.u32 %block, %ctaid.x;
    mov.u32 %size, %ntid.x;
    mov.u32 %index, %tid.x;
    mad.lo.u32 %index, %block, %size, %index;
    ld.param.u32 %count, [count];
    setp.ge.u32 %outside, %index, %count;
    @%outside ret;
    ld.param.u64 %words, [words];
    cvta.to.global.u64 %words, %words;
    mul.wide.u32 %place, %index, 8;
    add.u64 %place, %words, %place;
    ld.global.u64 %word, [%place];
    mov.u64 %factor, {FACTOR:#x};
    mov.u64 %step, {STEP:#x};
    mad.lo.u64 %word, %word, %factor, %step;
    st.global.u64 [%place], %word;
    mul.wide.u32 %weight, %index, 2;
    add.u64 %weight, %weight, 1;
    mul.lo.u64 %word, %word, %weight;
    ld.param.u64 %cell, [cell];
    cvta.to.global.u64 %cell, %cell;
    red.global.add.u64 [%cell+16], %word;
    ret;
}}

.visible .entry fold(.param .u64 cell)
{{
    .reg .u64 %cell, %counter, %hash, %base, %sum;
    ld.param.u64 %cell, [cell];
    cvta.to.global.u64 %cell, %cell;
    ld.global.u64 %counter, [%cell];
    ld.global.u64 %hash, [%cell+8];
    ld.global.u64 %sum, [%cell+16];
    add.u64 %counter, %counter, 1;
    mov.u64 %base, {BASE:#x};
    mad.lo.u64 %hash, %hash, %base, %sum;
    mov.u64 %sum, 0;
    st.global.u64 [%cell], %counter;
    st.global.u64 [%cell+8], %hash;
    st.global.u64 [%cell+16], %sum;
    ret;
}}
"""


def values(device: str) -> Iterator[int]:
    """Give the values of tick 1, 2, ... of a job on `device` (gpu or cpu) that lost nothing.

    The words follow one rule, word i at tick n is i * SEED * FACTOR^n + c(n), so that their
    weighted sum needs no words at all.
    """
    count = WORDS[device]
    weights = count * count
    weighted = SEED * ((count - 1) * count * (2 * count - 1) // 3 + count * (count - 1) // 2)
    constant = value = 0
    while True:
        weighted = weighted * FACTOR & MASK
        constant = (constant * FACTOR + STEP) & MASK
        value = (value * BASE + weighted + constant * weights) & MASK
        yield value


def expected(tick: int, device: str) -> int:
    """Return the value that tick number `tick` (from 1) has to have on `device`."""
    counted = values(device)
    for _ in range(tick - 1):
        next(counted)
    return next(counted)


def read_log(log: Path) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Return the device and all (tick, value) of a log; a line still being written is left out."""
    device, *lines = log.read_text(encoding="ascii").split("\n")[:-1] or [""]
    fields = (line.split() for line in lines if line.startswith("tick "))
    ticks = tuple((int(tick), int(value, 16)) for _, tick, _, value in fields)
    return device.removeprefix("device "), ticks


def faults(log: Path) -> tuple[str, ...]:
    """Say everything in a log that a job that was never disturbed would not have written."""
    device, ticks = read_log(log)
    lines = log.read_text(encoding="ascii").splitlines()
    found = [line for line in lines if line.startswith("failed")]
    right = values(device) if ticks else iter(())
    for number, ((tick, value), wanted) in enumerate(zip(ticks, right, strict=False), start=1):
        if tick != number:
            found.append(f"tick {tick} stands where {number} should")
        if value != wanted:
            found.append(f"the value of tick {number} is {value:016x}, not {wanted:016x}")
    return tuple(found)


class Counter(Protocol):
    """What counts."""

    device: str

    def tick(self) -> tuple[int, int]:
        """Count on; the tick's number and value, read from the memory that counts."""

    def close(self) -> None:
        """Give the memory back."""


class CpuCounter:
    """Counts in plain memory."""

    device = "cpu"

    def __init__(self) -> None:
        """Fill the buffer."""
        self._words = first_words(WORDS["cpu"])
        self._tick = self._value = 0

    def tick(self) -> tuple[int, int]:
        """See Counter."""
        total = 0
        words = self._words
        for index, word in enumerate(words):
            words[index] = fresh = (word * FACTOR + STEP) & MASK
            total += fresh * (2 * index + 1)
        self._tick += 1
        self._value = (self._value * BASE + total) & MASK
        return self._tick, self._value

    def close(self) -> None:
        """See Counter."""


class GpuCounter:
    """Counts on the first GPU."""

    device = "gpu"

    def __init__(self) -> None:
        """Make a context, load the kernels, fill the buffer. RuntimeError if there is no GPU."""
        from cuda.bindings import driver  # noqa: PLC0415 - a CPU job works without

        self._cuda = driver
        ask(driver.cuInit(0))
        self._gpu = ask(driver.cuDeviceGet(0))
        ask(driver.cuCtxSetCurrent(ask(driver.cuDevicePrimaryCtxRetain(self._gpu))))
        source = ctypes.create_string_buffer(PTX.encode("ascii"))
        module = ask(driver.cuModuleLoadData(ctypes.addressof(source)))
        self._step = ask(driver.cuModuleGetFunction(module, b"step"))
        self._fold = ask(driver.cuModuleGetFunction(module, b"fold"))
        words = first_words(WORDS["gpu"])
        self._words = self._upload(words)
        self._cell = self._upload(array("Q", (0, 0, 0)))
        self._read = (ctypes.c_uint64 * 3)()

    def _upload(self, words: array[int]) -> int:
        size = len(words) * words.itemsize
        place = int(ask(self._cuda.cuMemAlloc(size)))
        ask(self._cuda.cuMemcpyHtoD(place, words.buffer_info()[0], size))
        return place

    def _launch(
        self, kernel: object, blocks: int, threads: int, *arguments: ctypes._SimpleCData[int]
    ) -> None:
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        shape = (blocks, 1, 1, threads, 1, 1)
        ask(self._cuda.cuLaunchKernel(kernel, *shape, 0, 0, ctypes.addressof(pointers), 0))

    def tick(self) -> tuple[int, int]:
        """See Counter."""
        count, cell = WORDS["gpu"], ctypes.c_uint64(self._cell)
        words = ctypes.c_uint64(self._words)
        self._launch(self._step, count // BLOCK, BLOCK, words, ctypes.c_uint32(count), cell)
        self._launch(self._fold, 1, 1, cell)
        read = self._read
        ask(self._cuda.cuMemcpyDtoH(ctypes.addressof(read), self._cell, ctypes.sizeof(read)))
        return read[0], read[1]

    def close(self) -> None:
        """See Counter."""
        ask(self._cuda.cuDevicePrimaryCtxRelease(self._gpu))


def first_words(count: int) -> array[int]:
    """Return the buffer before the first tick."""
    return array("Q", (index * SEED & MASK for index in range(count)))


def ask(answer: tuple[Any, ...]) -> Any:  # noqa: ANN401 - whatever the driver returns
    """Return what a driver call gave; RuntimeError with the result's name if it failed."""
    result, *values = answer
    if int(result) != 0:
        raise RuntimeError(f"the driver answers {result.name}")
    return values[0] if values else None


def counter(device: str) -> Counter:
    """Return what counts on `device`; auto: on the GPU if there is one."""
    if device == "cpu":
        return CpuCounter()
    try:
        return GpuCounter()
    except (ImportError, RuntimeError):
        if device == "gpu":
            raise
        return CpuCounter()


def main(arguments: Sequence[str]) -> int:
    """Count until SIGTERM."""
    parser = argparse.ArgumentParser(prog="gpuckpt.demo_job", description="A job that counts.")
    parser.add_argument("--log", type=Path, required=True, help="file to append to")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    options = parser.parse_args(arguments)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _frame: stopping.append(signum))
    job = counter(options.device)
    log = os.open(options.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    leave_surroundings()
    os.write(log, f"device {job.device}\n".encode())
    try:
        while not stopping:
            tick, value = job.tick()
            os.write(log, f"tick {tick} value {value:016x}\n".encode())
            time.sleep(INTERVAL)
        job.close()
    except RuntimeError as why:
        os.write(log, f"failed: {why}\n".encode())
        return 1
    return 0


def leave_surroundings() -> None:
    """Let go of terminal, pipes and folder of whoever started the job."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    os.chdir("/")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
