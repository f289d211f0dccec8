"""Median times of products: of kernels in CUDA graphs, and of eager calls. Peers are sampled in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gsparse.device.gpu_streams import on_stream

# Number of products in one CUDA graph: enough that the time to start the graph is negligible.
PRODUCTS_PER_GRAPH = 10

# Number of consecutive samples of one peer. Another sample before them is discarded, because the other peers have
# evicted the peer's data from the cache.
SAMPLES_IN_A_ROW = 5

# If the samples of one peer would take longer than this many seconds, fewer are taken, but at least MIN_SAMPLES.
SAMPLING_SECONDS = 0.4
MIN_SAMPLES = 3

# A batch of eager calls takes about BATCH_SECONDS, but has at most MAX_BATCH calls.
BATCH_SECONDS = 2e-3
MAX_BATCH = 50


@dataclass(frozen=True)
class Sampler:
    """A product that can be timed repeatedly.

    Attributes
    ----------
    sample : callable
        Runs the product, perhaps several times, and returns the seconds per product.
    note : str
        How the product is timed, if not like the other products.
    pause : float
        Seconds to wait after the product's turn, because the threads of its library continue to spin.
    """

    sample: Callable[[], float]
    note: str = ""
    pause: float = 0.0


def medians(samplers: Mapping[Any, Sampler], repeats: int) -> dict[Any, float | Exception]:
    """Return the median time of each sampler in seconds, or its error.

    The samplers take turns, so that a disturbance of the machine affects all of them.
    """
    times: dict[Any, list[float]] = {key: [] for key in samplers}
    num_samples = dict.fromkeys(samplers, repeats)
    failed: dict[Any, Exception] = {}
    while any(len(times[key]) < num_samples[key] for key in samplers if key not in failed):
        for key, sampler in samplers.items():
            if key in failed or len(times[key]) >= num_samples[key]:
                continue
            try:
                begin = time.perf_counter()
                sampler.sample()
                seconds = time.perf_counter() - begin
                num_samples[key] = min(repeats, max(MIN_SAMPLES, int(SAMPLING_SECONDS / max(seconds, 1e-9))))
                for _ in range(min(SAMPLES_IN_A_ROW, num_samples[key] - len(times[key]))):
                    times[key].append(sampler.sample())
                time.sleep(sampler.pause)
            except Exception as error:  # the other peers are still measured
                failed[key] = error
    return {key: failed.get(key) or statistics.median(samples) for key, samples in times.items()}


@contextmanager
def threads_from_the_first_call() -> Iterator[None]:
    """Within the block, compile code for several threads at the first call on the CPU, not after a hundred calls."""
    from gsparse.kernels.cpu.compiling import HandOut  # imports numba, which `gsparse --help` does not need

    previous, HandOut.num_first = HandOut.num_first, 0
    try:
        yield
    finally:
        HandOut.num_first = previous


def seconds_of_call(call: Callable[[], Any], synchronize: Callable[[], Any]) -> float:
    """Return the wall time of one call. The device is idle at the beginning and at the end."""
    synchronize()
    begin = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - begin


def peak_bytes(cupy: Any, call: Callable[[], Any]) -> int:
    """Return the largest number of bytes of CuPy's memory pool that are in use during a call, minus those before it."""
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


def call_sampler(call: Callable[[], Any], synchronize: Callable[[], Any], pause: float = 0.0) -> Sampler:
    """Return a sampler of eager calls in batches.

    A batch ends when the device is idle, so its time is the host's or the device's, whichever is longer.
    """
    call()
    seconds = seconds_of_call(call, synchronize)
    batch = int(min(MAX_BATCH, max(1, BATCH_SECONDS / max(seconds, 1e-9))))

    def calls() -> None:
        for _ in range(batch):
            call()

    time.sleep(pause)
    return Sampler(lambda: seconds_of_call(calls, synchronize) / batch, pause=pause)


@dataclass
class GpuClock:
    """A timer of GPU work that is queued through CuPy.

    While a matrix is measured, each sampler has its own stream. A captured call may allocate and free memory to which
    its graph still writes in each run. CuPy reuses freed memory only on the same stream, so no other sampler receives
    this memory.

    Parameters
    ----------
    cupy : module
    """

    cupy: Any
    _streams: list[Any] = field(default_factory=list)
    _used: int = 0

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        self.cupy.cuda.Device().synchronize()

    def recycle(self) -> None:
        """Reuse the streams, and free CuPy's unused memory. Call this after a matrix's samplers are dropped."""
        self.synchronize()
        self._used = 0
        self.cupy.get_default_memory_pool().free_all_blocks()

    def kernel_sampler(self, launch: Callable[[], Any]) -> Sampler:
        """Return a sampler of launches in a CUDA graph; if capture fails, of eager launches between events."""
        self.synchronize()  # another stream may still compute the arrays that the launch reads
        stream = self._next_stream()
        with on_stream(self.cupy, stream):
            launch()
            launch()
            stream.synchronize()
        try:
            return Sampler(self._graph_sample(stream, launch))
        except Exception as error:
            self.synchronize()
            eager = self._next_stream()  # the first stream may still be in capture mode
            with on_stream(self.cupy, eager):
                launch()
                eager.synchronize()
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            return Sampler(
                self._event_sample(eager, lambda: [launch() for _ in range(PRODUCTS_PER_GRAPH)]),
                f"events around {PRODUCTS_PER_GRAPH} eager calls, not captured ({reason})",
            )

    def _next_stream(self) -> Any:
        if self._used == len(self._streams):
            self._streams.append(self.cupy.cuda.Stream(non_blocking=True))
        self._used += 1
        return self._streams[self._used - 1]

    def _graph_sample(self, stream: Any, launch: Callable[[], Any]) -> Callable[[], float]:
        # The arrays that the captured calls read and return must live as long as the graph.
        kept: list[Any] = [launch]
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
        """End a capture that failed, and remove its stream. Ending it raises another error, which is ignored."""
        self._streams.remove(stream)
        self._used -= 1
        try:
            stream.end_capture()
        except Exception:
            return

    def _event_sample(self, stream: Any, run: Callable[[], Any]) -> Callable[[], float]:
        """Return a function that times `run`, which queues `PRODUCTS_PER_GRAPH` products.

        The function returns the seconds per product.
        """
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
