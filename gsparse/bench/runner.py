"""Measure one matrix after the other: load it, prepare all peers, check their products, and time them in turns."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import metadata
from typing import Any

import numpy as np

import gsparse
from gsparse.bench import cpu_peers, gpu_peers
from gsparse.bench.check import ExactProduct
from gsparse.bench.columns import column_peers, with_columns
from gsparse.bench.cusparse import CusparseError, loaded_version
from gsparse.bench.peers import LoadedMatrix, Peer, Prepared, SkippedError, format_peers, load
from gsparse.bench.problems import Problem, with_distinct_names
from gsparse.bench.records import Record, Run, with_reference
from gsparse.bench.timing import (
    GpuClock,
    Sampler,
    call_sampler,
    medians,
    threads_from_the_first_call,
)
from gsparse.device.base import Device, measure_copy_bandwidth

# Up to this many entries (plus elements of X and Y beyond their first columns), all peers are prepared at once and
# are timed in turns. Above, they are prepared and timed one after the other, to save memory.
MAX_ENTRIES_TOGETHER = {"gpu": 5_000_000, "cpu": 20_000_000}


@dataclass(frozen=True)
class Settings:
    """What to measure, on which device, and how often.

    Attributes
    ----------
    device : Device
    dtypes : tuple of str
    formats : tuple of str
        Names out of `gsparse.FORMATS`. An empty tuple means all of them.
    threads : tuple of int
        The numbers of CPU threads to measure with.
    repeats : int
        Number of samples of each figure. Fewer are taken, but at least 3, if they would take longer than 0.4 s.
    check : bool
        Whether to compare each product with one in extended precision.
    columns : tuple of int
        The numbers of columns of X to measure with. With an empty tuple, x is a vector.
    """

    device: Device
    dtypes: tuple[str, ...] = ("float64",)
    formats: tuple[str, ...] = ()
    threads: tuple[int, ...] = (1,)
    repeats: int = 15
    check: bool = False
    columns: tuple[int, ...] = ()


def run(problems: Iterable[Problem], settings: Settings, show: Callable[[Run], None] = lambda part: None) -> Run:
    """Measure every problem in every dtype.

    Parameters
    ----------
    problems : iterable of Problem
        Files of the same name are told apart by their paths.
    settings : Settings
    show : callable, optional
        Called with a run that has the environment alone, and then with one for each matrix and dtype, as soon as it is
        measured: it has the records of these, or their error.

    Returns
    -------
    Run
        The records. A matrix that cannot be made or loaded is listed in `Run.errors`, and the others are measured.
    """
    device = settings.device
    with device.active():
        clock = GpuClock(device.xp) if device.kind == "gpu" else None
        results = Run(environment(device), copy_bandwidths(settings), ())
        show(results)
        for problem in with_distinct_names(problems):
            for name, make in (case for dtype in settings.dtypes for case in _cases(problem, dtype, settings)):
                part = _measure_case(results, name, make, settings, clock)
                results = replace(results, records=results.records + part.records, errors=results.errors | part.errors)
                show(part)
    return results


def _cases(problem: Problem, dtype: str, settings: Settings) -> Iterator[tuple[str, Callable[[], LoadedMatrix]]]:
    """Yield the name and the loader of each measurement of a problem in one dtype.

    There is one for each number of columns. All of them share the matrix, which is loaded once.
    """
    load_once = cache(partial(load, problem, settings.device, dtype))
    if not settings.columns:
        yield f"{problem.name}, {dtype}", load_once
    for columns in settings.columns:
        yield f"{problem.name} × {columns}, {dtype}", partial(_with_columns, load_once, columns)


def _with_columns(load_once: Callable[[], LoadedMatrix], columns: int) -> LoadedMatrix:
    return with_columns(load_once(), columns)


def _measure_case(
    results: Run, name: str, make: Callable[[], LoadedMatrix], settings: Settings, clock: GpuClock | None
) -> Run:
    """Return a copy of `results` with only the records of this case, or with its error."""
    try:
        return replace(results, records=tuple(measure(make(), settings, clock)), errors={})
    except Exception as error:  # The run goes on with the next matrix.
        return replace(results, records=(), errors={name: describe(error)})
    finally:
        if clock is not None:
            gc.collect()  # Frees the device memory of a matrix that is part of a reference cycle.
            clock.recycle()


def measure(loaded: LoadedMatrix, settings: Settings, clock: GpuClock | None = None) -> list[Record]:
    """Return the records of one matrix.

    Parameters
    ----------
    loaded : LoadedMatrix
    settings : Settings
    clock : GpuClock, optional
        Times kernels and calls on a GPU. A new one is made by default. A CPU needs none.
    """
    if clock is None and loaded.device.kind == "gpu":
        clock = GpuClock(loaded.device.xp)
    exact = ExactProduct(loaded) if settings.check else None
    libraries = gpu_peers if loaded.device.kind == "gpu" else cpu_peers
    if settings.columns:
        peers = [*column_peers(loaded), *libraries.library_column_peers(loaded)]
    else:
        peers = [*format_peers(loaded, settings.formats), *libraries.library_peers(loaded)]
    together = loaded.nnz + (loaded.columns - 1) * sum(loaded.shape) <= MAX_ENTRIES_TOGETHER[loaded.device.kind]
    records: list[Record] = []
    for group in [peers] if together else [[peer] for peer in peers]:
        records += _measure_group(loaded, group, settings, clock, exact)
        if clock is not None:
            clock.recycle()
    return with_reference(_in_table_order(records, peers))


def _in_table_order(records: Sequence[Record], peers: Sequence[Peer]) -> list[Record]:
    """Sort records for the table: by the number of threads first, and then in the order of the peers."""
    positions = {peer.what: position for position, peer in enumerate(peers)}
    return sorted(records, key=lambda r: (r.threads or 0, positions[r.what]))


def _measure_group(
    loaded: LoadedMatrix, peers: Sequence[Peer], settings: Settings, clock: GpuClock | None, exact: ExactProduct | None
) -> list[Record]:
    records: list[Record] = []
    ready: list[tuple[Peer, Prepared, Record]] = []
    for peer in peers:
        untimed = replace(_untimed_record(loaded, peer), threads=None if clock is not None else settings.threads[0])
        try:
            prepared = peer.prepare()
            record = replace(untimed, **_record_fields(prepared))
            ready.append((peer, prepared, _with_error(record, prepared, exact)))
        except (SkippedError, ImportError) as reason:  # The peer does not fit the matrix, or is not installed.
            records.append(replace(untimed, status="skipped", note=str(reason)))
        except Exception as error:
            records.append(replace(untimed, status="failed", note=describe(error)))
    if clock is not None:
        return records + _time_on_gpu(ready, settings, clock)
    for threads in settings.threads:
        records += _time_on_cpu(ready, threads, settings)
    return records


def _untimed_record(loaded: LoadedMatrix, peer: Peer) -> Record:
    rows, cols = loaded.shape
    name = getattr(loaded.device, "description", loaded.device.name)
    return Record(
        loaded.name, rows, cols, loaded.nnz, loaded.longest, loaded.dtype.name, name, peer.what, peer.kind, **peer.label
    )


def _record_fields(prepared: Prepared) -> dict[str, Any]:
    setup = prepared.setup_seconds
    return {"nbytes": prepared.nbytes, "setup_us": None if setup is None else setup * 1e6, **(prepared.label or {})}


def _with_error(record: Record, prepared: Prepared, exact: ExactProduct | None) -> Record:
    if exact is None:
        return record
    error, correct = exact.compare((prepared.result or prepared.call)())
    return replace(record, error_eps=error, correct=correct)


def _time_on_gpu(ready: Sequence[tuple[Peer, Prepared, Record]], settings: Settings, clock: GpuClock) -> list[Record]:
    prepared = [each for _, each, _ in ready]
    kernels = [each.sampler or partial(clock.kernel_sampler, each.launch or each.call) for each in prepared]
    times, notes = _times(kernels, settings.repeats)
    call_times, _ = _times([partial(call_sampler, each.call, clock.synchronize) for each in prepared], settings.repeats)
    return [
        _with_times(record, notes.get(i, ""), kernel_us=times[i], call_us=call_times[i])
        for i, (_, _, record) in enumerate(ready)
    ]


def _time_on_cpu(ready: Sequence[tuple[Peer, Prepared, Record]], threads: int, settings: Settings) -> list[Record]:
    """Time calls with this many threads. A peer that uses only one thread is timed with the first count alone."""
    active = [item for item in ready if item[0].set_threads is not None or threads == settings.threads[0]]
    with ExitStack() as restored:
        restored.enter_context(threads_from_the_first_call())
        for set_threads in {peer.set_threads for peer, _, _ in active if peer.set_threads is not None}:
            restored.callback(set_threads, set_threads(threads))
        calls = [
            partial(call_sampler, prepared.call, lambda: None, prepared.pause if threads > 1 else 0.0)
            for _, prepared, _ in active
        ]
        times, _ = _times(calls, settings.repeats)
    return [
        _with_times(replace(record, threads=1 if peer.set_threads is None else threads), "", call_us=times[i])
        for i, (peer, _, record) in enumerate(active)
    ]


def _times(
    makers: Sequence[Callable[[], Sampler]], repeats: int
) -> tuple[dict[int, float | Exception], dict[int, str]]:
    """Make samplers, and return the median of each in seconds, or the error that it or its maker raised, and notes."""
    samplers: dict[int, Sampler] = {}
    failed: dict[int, float | Exception] = {}
    for i, make in enumerate(makers):
        try:
            samplers[i] = make()
        except Exception as error:  # The other peers are still measured.
            failed[i] = error
    return medians(samplers, repeats) | failed, {i: sampler.note for i, sampler in samplers.items()}


def _with_times(record: Record, note: str, **seconds: float | Exception) -> Record:
    """Return the record with times in microseconds, or as a failed one if one of the times is an error."""
    for name, value in seconds.items():
        if isinstance(value, Exception):
            return replace(record, status="failed", note=describe(value))
        record = replace(record, **{name: value * 1e6})  # type: ignore[arg-type]
    return replace(record, note=note)


def describe(error: Exception) -> str:
    """Return the type and the message of an error in one line."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}"[:300]


def copy_bandwidths(settings: Settings) -> dict[str, float]:
    """Measure the bandwidth of a large copy in GB/s, with the keys of `Run.copy_gbytes_per_second`."""
    if settings.device.kind == "gpu":
        return {"gpu": settings.device.copy_bandwidth / 1e9}
    bandwidths, previous = {}, gsparse.get_num_threads()
    try:
        for threads in settings.threads:
            gsparse.set_num_threads(threads)
            bandwidths[str(threads)] = measure_copy_bandwidth(settings.device) / 1e9
    finally:
        gsparse.set_num_threads(previous)
    return bandwidths


def environment(device: Device) -> dict[str, str]:
    """Return what the figures depend on: the machine, the device, the versions of packages, and the date."""
    facts = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": platform.machine(),
        "device": getattr(device, "description", device.name),
        "python": platform.python_version(),
        "gsparse": gsparse.__version__,
        "numpy": np.__version__,
    }
    for name in ("scipy", "numba", "torch", "cupy-cuda13x", "cupy-cuda12x"):
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if device.kind == "gpu":
        with suppress(CusparseError, ImportError, AttributeError), device.active():
            facts["cuSPARSE"] = loaded_version()
    return facts
