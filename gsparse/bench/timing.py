"""Medians of products: of the kernel alone through CUDA graphs, and of eager calls; peers take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gsparse.device.gpu import on_stream

__all__ = ["GpuClock", "Sampler", "call_sampler", "cpu_copy_bandwidth", "medians", "once", "peak_bytes"]

# Products captured in one CUDA graph: enough that starting the graph is nothing beside them.
PRODUCTS_PER_GRAPH = 10

# Samples of one peer in a row, after one that is dropped: the first finds its data pushed out of the cache by others.
SAMPLES_IN_A_ROW = 5

# Seconds that the samples of one figure may take before their number is cut down, and the fewest there are.
SAMPLING_SECONDS = 0.4
MIN_SAMPLES = 3

# An eager batch: as many calls as take this long, within these limits.
BATCH_SECONDS = 2e-3
MAX_BATCH = 50

COPY_BYTES = 4 << 30
CPU_COPY_BYTES = 1 << 28


@dataclass(frozen=True)
class Sampler:
    """Something that can be timed again and again.

    Attributes
    ----------
    sample : callable
        Runs and gives the seconds of one product.
    note : str
        How it is timed, where not as the others.
    rest : float
        Seconds to wait after its turn, for threads of its own that go on spinning.
    """

    sample: Callable[[], float]
    note: str = ""
    rest: float = 0.0


def medians(samplers: Mapping[Any, Sampler], repeats: int) -> dict[Any, float | Exception]:
    """Give each sampler's median, in seconds, or the error it met; they take turns, so a slow minute meets all."""
    times: dict[Any, list[float]] = {key: [] for key in samplers}
    wanted = dict.fromkeys(samplers, repeats)
    failed: dict[Any, Exception] = {}
    while any(len(times[key]) < wanted[key] for key in samplers if key not in failed):
        for key, sampler in samplers.items():
            if key in failed or len(times[key]) >= wanted[key]:
                continue
            try:
                begin = time.perf_counter()
                sampler.sample()
                took = time.perf_counter() - begin
                wanted[key] = min(repeats, max(MIN_SAMPLES, int(SAMPLING_SECONDS / max(took, 1e-9))))
                for _ in range(min(SAMPLES_IN_A_ROW, wanted[key] - len(times[key]))):
                    times[key].append(sampler.sample())
                time.sleep(sampler.rest)
            except Exception as error:  # one peer's failure leaves the others' figures standing
                failed[key] = error
    return {key: failed.get(key) or statistics.median(found) for key, found in times.items()}


def once(call: Callable[[], Any], synchronize: Callable[[], Any]) -> float:
    """Give the wall time of one call, from an idle device to an idle device."""
    synchronize()
    begin = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - begin


def peak_bytes(cupy: Any, call: Callable[[], Any]) -> int:
    """Give the bytes that a call takes out of CuPy's pool, at its peak, beside what was in use before."""
    pool = cupy.get_default_memory_pool()

    class Peak(cupy.cuda.MemoryHook):  # type: ignore[misc]
        name = "peak"
        used = 0

        def malloc_postprocess(self, **_: Any) -> None:
            self.used = max(self.used, pool.used_bytes())

    before = pool.used_bytes()
    with Peak() as hook:
        call()
    return max(0, int(hook.used) - int(before))


def call_sampler(call: Callable[[], Any], synchronize: Callable[[], Any], rest: float = 0.0) -> Sampler:
    """Time eager calls in batches that end with the device idle: the host's time or the device's, whichever is more."""
    call()
    seconds = once(call, synchronize)
    batch = int(min(MAX_BATCH, max(1, BATCH_SECONDS / max(seconds, 1e-9))))

    def sample() -> float:
        synchronize()
        begin = time.perf_counter()
        for _ in range(batch):
            call()
        synchronize()
        return (time.perf_counter() - begin) / batch

    time.sleep(rest)
    return Sampler(sample, rest=rest)


@dataclass
class GpuClock:
    """Times work queued through CuPy.

    Each sampler has a stream of its own while a matrix is measured. CuPy keeps freed memory by stream: what a captured
    call allocated and freed again, and its graph goes on writing to, is so never handed to another.

    Parameters
    ----------
    cupy : module
    """

    cupy: Any
    _streams: list[Any] = field(default_factory=list)
    _used: int = 0

    def synchronize(self) -> None:
        """Wait for the whole device."""
        self.cupy.cuda.Device().synchronize()

    def recycle(self) -> None:
        """Let the streams be used again and give back memory, once the samplers of one matrix are dropped."""
        self.synchronize()
        self._used = 0
        self.cupy.get_default_memory_pool().free_all_blocks()

    def kernel_sampler(self, launch: Callable[[], Any]) -> Sampler:
        """Time launches captured in a CUDA graph; eager ones between two events where they cannot be captured."""
        self.synchronize()  # what is launched may read what another stream is still making
        stream = self._next_stream()
        with on_stream(self.cupy, stream):
            launch()
            launch()
            stream.synchronize()
        try:
            return Sampler(self._graph_sample(stream, launch))
        except Exception as error:
            self.synchronize()
            eager = self._next_stream()  # the other may still be in the capture's state
            with on_stream(self.cupy, eager):
                launch()
                eager.synchronize()
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            return Sampler(
                self._event_sample(eager, lambda: [launch() for _ in range(PRODUCTS_PER_GRAPH)]),
                f"events around {PRODUCTS_PER_GRAPH} eager calls, not captured ({reason})",
            )

    def copy_bandwidth(self) -> float:
        """Give bytes read and written a second by a large copy of the driver's."""
        free, _ = self.cupy.cuda.runtime.memGetInfo()
        source = self.cupy.ones(min(COPY_BYTES, free // 4) // 16, np.float64)
        target = self.cupy.empty_like(source)
        stream = self.cupy.cuda.get_current_stream()
        copy = self._event_sample(stream, lambda: target.data.copy_from_device_async(source.data, source.nbytes))
        found = statistics.median([copy() * PRODUCTS_PER_GRAPH for _ in range(13)][3:])
        return float(2 * source.nbytes / found)

    def _next_stream(self) -> Any:
        if self._used == len(self._streams):
            self._streams.append(self.cupy.cuda.Stream(non_blocking=True))
        self._used += 1
        return self._streams[self._used - 1]

    def _graph_sample(self, stream: Any, launch: Callable[[], Any]) -> Callable[[], float]:
        kept: list[Any] = []  # what the captured calls gave: the graph writes there each time
        with on_stream(self.cupy, stream):
            stream.begin_capture()
            try:
                kept.extend(launch() for _ in range(PRODUCTS_PER_GRAPH))
            except Exception:
                self._abandon(stream)
                raise
            graph = stream.end_capture()

        def replay() -> list[Any]:
            graph.launch(stream)
            return kept

        sample = self._event_sample(stream, replay)
        sample()
        return sample

    def _abandon(self, stream: Any) -> None:
        """End a capture that failed, which raises again."""
        self._streams.remove(stream)
        self._used -= 1
        try:
            stream.end_capture()
        except Exception:
            return

    def _event_sample(self, stream: Any, run: Callable[[], Any]) -> Callable[[], float]:
        """Give a function that runs `PRODUCTS_PER_GRAPH` products on a stream and gives the seconds of one."""
        cuda = self.cupy.cuda

        def sample() -> float:
            begin, end = cuda.Event(), cuda.Event()
            with on_stream(self.cupy, stream):
                begin.record(stream)
                run()
                end.record(stream)
            end.synchronize()
            return float(cuda.get_elapsed_time(begin, end)) / PRODUCTS_PER_GRAPH / 1e3

        return sample


def cpu_copy_bandwidth(threads: int, nbytes: int = CPU_COPY_BYTES) -> float:
    """Give bytes read and written a second by so many threads that copy a large array."""
    source, target = np.ones(nbytes // 8), np.zeros(nbytes // 8)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        seconds = medians(
            {0: Sampler(lambda: once(lambda: list(pool.map(np.copyto, *zip(*parts, strict=True))), int))}, 5
        )[0]
    if isinstance(seconds, Exception):
        raise seconds
    return 2 * nbytes / seconds
