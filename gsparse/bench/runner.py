"""One matrix after the other: load, prepare everybody, time them in turns, check, record."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import metadata
from typing import Any

import numpy as np

import gsparse
from gsparse.bench import cpu_peers, gpu_peers
from gsparse.bench.check import Exact
from gsparse.bench.columns import column_peers, with_columns
from gsparse.bench.peers import Loaded, Peer, Prepared, SkippedError, format_peers, load
from gsparse.bench.problems import Problem
from gsparse.bench.records import Record, Run, with_reference
from gsparse.bench.timing import GpuClock, Sampler, call_sampler, cpu_copy_bandwidth, medians
from gsparse.device.base import Device

__all__ = ["Listener", "Settings", "measure", "run"]

# Up to this many entries, and elements of further columns, everybody is kept at once and takes turns; above, one after
# the other, to spare memory.
MAX_ENTRIES_TOGETHER = {"gpu": 5_000_000, "cpu": 20_000_000}


@dataclass(frozen=True)
class Settings:
    """What to measure, on what, how often.

    Attributes
    ----------
    device : Device
    dtypes : tuple of str
    formats : tuple of str
        Names out of `gsparse.FORMATS`, all where empty.
    threads_per_block : tuple of int
        The default alone where empty.
    threads : tuple of int
        CPU threads, one count after the other.
    repeats : int
        Samples of each figure.
    check : bool
        Whether to compare each product with one in extended precision.
    columns : tuple of int
        Of X, one count after the other; where empty x is a vector.
    launches : tuple of str
        With columns, on a GPU: the layouts of X for which every launch is timed that the plan chooses among.
    """

    device: Device
    dtypes: tuple[str, ...] = ("float64",)
    formats: tuple[str, ...] = ()
    threads_per_block: tuple[int, ...] = ()
    threads: tuple[int, ...] = (1,)
    repeats: int = 15
    check: bool = False
    columns: tuple[int, ...] = ()
    launches: tuple[str, ...] = ()


class Listener:
    """Hears of a run as it goes; this one keeps it to itself."""

    def start(self, run: Run) -> None:
        """Hear what is measured on, before the first matrix."""

    def step(self, text: str) -> None:
        """Hear what is being measured."""

    def show(self, name: str, part: Run) -> None:
        """Hear of one matrix, in one type, all there is."""


def run(problems: Iterable[Problem], settings: Settings, listener: Listener | None = None) -> Run:
    """Measure every problem in every type.

    Parameters
    ----------
    problems : iterable of Problem
    settings : Settings
    listener : Listener, optional

    Returns
    -------
    Run
        A matrix that cannot be made or loaded is among `Run.errors`; the others stand.
    """
    device, listener = settings.device, listener or Listener()
    with device.active():
        clock = GpuClock(device.xp) if device.kind == "gpu" else None
        found = Run(environment(device), copy_bandwidths(settings, clock), ())
        listener.start(found)
        for problem in problems:
            for name, make in (part for dtype in settings.dtypes for part in _parts(problem, dtype, settings)):
                part = _part(found, name, make, settings, clock, listener)
                found = replace(found, records=found.records + part.records, errors=found.errors | part.errors)
                listener.show(problem.name, part)
    return found


def _parts(problem: Problem, dtype: str, settings: Settings) -> Iterator[tuple[str, Callable[[], Loaded]]]:
    """Give what is measured of a problem in one type, by name: once for each count of columns, but loaded once."""
    load_once = cache(partial(load, problem, settings.device, dtype))
    if not settings.columns:
        yield f"{problem.name}, {dtype}", load_once
    for columns in settings.columns:
        yield f"{problem.name} × {columns}, {dtype}", partial(_with_columns, load_once, columns)


def _with_columns(load_once: Callable[[], Loaded], columns: int) -> Loaded:
    return with_columns(load_once(), columns)


def _part(
    whole: Run,
    name: str,
    make: Callable[[], Loaded],
    settings: Settings,
    clock: GpuClock | None,
    listener: Listener,
) -> Run:
    listener.step(name)
    try:
        return replace(whole, records=tuple(measure(make(), settings, clock, listener)), errors={})
    except Exception as error:  # the next matrix may fare better
        return replace(whole, records=(), errors={name: describe(error)})
    finally:
        if clock is not None:
            gc.collect()  # a matrix in a reference cycle would keep its device memory
            clock.recycle()


def measure(
    loaded: Loaded, settings: Settings, clock: GpuClock | None = None, listener: Listener | None = None
) -> list[Record]:
    """Give the records of one matrix.

    Parameters
    ----------
    loaded : Loaded
    settings : Settings
    clock : GpuClock, optional
        Times the kernels alone; without one only calls are timed, as on a CPU.
    listener : Listener, optional
    """
    exact = Exact(loaded) if settings.check else None
    libraries = gpu_peers if loaded.device.kind == "gpu" else cpu_peers
    if settings.columns:
        peers = [*column_peers(loaded, settings.launches), *libraries.library_column_peers(loaded)]
    else:
        formats = format_peers(loaded, settings.formats, settings.threads_per_block)
        peers = [*formats, *libraries.library_peers(loaded)]
    together = loaded.nnz + (loaded.columns - 1) * sum(loaded.shape) <= MAX_ENTRIES_TOGETHER[loaded.device.kind]
    records: list[Record] = []
    for group in [peers] if together else [[peer] for peer in peers]:
        if listener is not None:
            listener.step(
                ", ".join([loaded.name, loaded.dtype.name, *(peer.what for peer in group[:1] if not together)])
            )
        records += _measure_group(loaded, group, settings, clock, exact)
        if clock is not None:
            clock.recycle()
    return with_reference(_in_order(records, peers))


def _in_order(records: Sequence[Record], peers: Sequence[Peer]) -> list[Record]:
    """Bring records into the order of a table: one count of threads after the other, peers as they were named."""
    places = {peer.what: place for place, peer in enumerate(peers)}
    return sorted(records, key=lambda r: (r.threads or 0, places[r.what]))


def _measure_group(
    loaded: Loaded, peers: Sequence[Peer], settings: Settings, clock: GpuClock | None, exact: Exact | None
) -> list[Record]:
    records: list[Record] = []
    ready: list[tuple[Peer, Prepared, Record]] = []
    for peer in peers:
        blank = replace(_blank(loaded, peer), threads=None if clock is not None else settings.threads[0])
        try:
            prepared = peer.prepare()
            record = replace(blank, **_facts(prepared))
            ready.append((peer, prepared, _checked(record, prepared, exact)))
        except SkippedError as reason:
            records.append(replace(blank, status="skipped", note=str(reason)))
        except Exception as error:
            records.append(replace(blank, status="failed", note=describe(error)))
    if clock is not None:
        return records + _timed_on_gpu(ready, settings, clock)
    for threads in settings.threads:
        records += _timed_on_cpu(ready, threads, settings)
    return records


def _blank(loaded: Loaded, peer: Peer) -> Record:
    rows, cols = loaded.shape
    name = getattr(loaded.device, "description", loaded.device.name)
    return Record(
        loaded.name, rows, cols, loaded.nnz, loaded.longest, loaded.dtype.name, name, peer.what, peer.kind, **peer.label
    )


def _facts(prepared: Prepared) -> dict[str, Any]:
    setup = prepared.setup_seconds
    return {"nbytes": prepared.nbytes, "setup_us": None if setup is None else setup * 1e6, **(prepared.label or {})}


def _checked(record: Record, prepared: Prepared, exact: Exact | None) -> Record:
    if exact is None:
        return record
    error, correct = exact.compare((prepared.result or prepared.call)())
    return replace(record, error_eps=error, correct=correct)


def _timed_on_gpu(ready: Sequence[tuple[Peer, Prepared, Record]], settings: Settings, clock: GpuClock) -> list[Record]:
    kernels: dict[int, Sampler] = {}
    failed: dict[int, Exception] = {}
    for i, (_, prepared, _) in enumerate(ready):
        try:
            launch = prepared.launch or prepared.call
            kernels[i] = prepared.sampler() if prepared.sampler else clock.kernel_sampler(launch)
        except Exception as error:
            failed[i] = error
    times: dict[int, float | Exception] = {**medians(kernels, settings.repeats), **failed}
    notes = {i: sampler.note for i, sampler in kernels.items()}
    kernels.clear()  # the graphs, and what they write to
    calls, more = _call_samplers([prepared for _, prepared, _ in ready], clock.synchronize)
    call_times = {**medians(calls, settings.repeats), **more}
    return [
        _filled(record, notes.get(i, ""), kernel_us=times[i], call_us=call_times[i])
        for i, (_, _, record) in enumerate(ready)
    ]


def _timed_on_cpu(ready: Sequence[tuple[Peer, Prepared, Record]], threads: int, settings: Settings) -> list[Record]:
    """Time calls with so many threads; what knows only one takes its turn once, at the first count."""
    chosen = [part for part in ready if part[0].set_threads is not None or threads == settings.threads[0]]
    before = gsparse.get_num_threads()
    try:
        for set_threads in {peer.set_threads for peer, _, _ in chosen if peer.set_threads is not None}:
            set_threads(threads)
        samplers, failed = _call_samplers([prepared for _, prepared, _ in chosen], lambda: None, threads)
        times = {**medians(samplers, settings.repeats), **failed}
    finally:
        gsparse.set_num_threads(before)
    return [
        _filled(replace(record, threads=1 if peer.set_threads is None else threads), "", call_us=times[i])
        for i, (peer, _, record) in enumerate(chosen)
    ]


def _call_samplers(
    ready: Sequence[Prepared], synchronize: Callable[[], Any], threads: int = 1
) -> tuple[dict[int, Sampler], dict[int, Exception]]:
    samplers: dict[int, Sampler] = {}
    failed: dict[int, Exception] = {}
    for i, prepared in enumerate(ready):
        try:
            samplers[i] = call_sampler(prepared.call, synchronize, prepared.rest if threads > 1 else 0.0)
        except Exception as error:
            failed[i] = error
    return samplers, failed


def _filled(record: Record, note: str, **seconds: float | Exception) -> Record:
    """Fill in times, in µs; an error instead of one makes the record a failed one."""
    for name, value in seconds.items():
        if isinstance(value, Exception):
            return replace(record, status="failed", note=describe(value))
        record = replace(record, **{name: value * 1e6})  # type: ignore[arg-type]
    return replace(record, note=note)


def describe(error: Exception) -> str:
    """Give an error as one line."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}"[:300]


def copy_bandwidths(settings: Settings, clock: GpuClock | None) -> dict[str, float]:
    """Measure what a copy reaches, in GB/s, by the keys of `Run.copy_gbytes_per_second`."""
    if clock is not None:
        return {"gpu": clock.copy_bandwidth() / 1e9}
    return {str(threads): cpu_copy_bandwidth(threads) / 1e9 for threads in settings.threads}


def environment(device: Device) -> dict[str, str]:
    """Give what figures depend on: machine, device, versions, date."""
    found = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": platform.machine(),
        "device": getattr(device, "description", device.name),
        "python": platform.python_version(),
        "gsparse": gsparse.__version__,
        "numpy": np.__version__,
    }
    for name in ("scipy", "numba", "torch", "cupy-cuda13x", "cupy-cuda12x", "nvidia-cusparse", "nvidia-cusparse-cu12"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
