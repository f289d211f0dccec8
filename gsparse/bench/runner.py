"""Measure one matrix after another: load it, prepare all peers, check their products, and time them in turns."""

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

# For matrices of at most this size, all peers are prepared first and then timed in turns. For larger matrices, one peer
# after another is prepared and timed, to save memory. The size is the number of entries plus the elements of X and Y
# beyond their first columns.
MAX_ENTRIES_TOGETHER = {"gpu": 5_000_000, "cpu": 20_000_000}


@dataclass(frozen=True)
class Settings:
    """The settings of a run: what is measured, on which device, and how often.

    Attributes
    ----------
    device : Device
    dtypes : tuple of str
    formats : tuple of str
        Names in `gsparse.FORMATS`; if empty, all of them.
    threads : tuple of int
        The numbers of CPU threads with which products are measured.
    repeats : int
        Number of samples of each time. If they would take longer than 0.4 s, fewer are taken, but at least 3.
    check : bool
        Whether each product is compared with a product in extended precision.
    columns : tuple of int
        The numbers of columns of X; if empty, x is a vector.
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
        The problems. Files whose names are not unique are named by their paths.
    settings : Settings
    show : callable, optional
        Called first with a run that has only the environment. Later, after each matrix and dtype, called with a run
        that has the records or the error of this matrix and dtype.

    Returns
    -------
    Run
        The records. Matrices that cannot be made or loaded are listed in `Run.errors`; the others are measured
        nevertheless.
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
    """Yield (name, load) for each number of columns of a problem in one dtype. ``load()`` returns the matrix.

    The matrix is loaded once for all numbers of columns.
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
    """Return `results` with the records of only this case, or with its error."""
    try:
        return replace(results, records=tuple(measure(make(), settings, clock)), errors={})
    except Exception as error:  # the run continues with the next matrix
        return replace(results, records=(), errors={name: describe(error)})
    finally:
        if clock is not None:
            gc.collect()  # frees the device memory of matrices in reference cycles
            clock.recycle()


def measure(loaded: LoadedMatrix, settings: Settings, clock: GpuClock | None = None) -> list[Record]:
    """Return the records of one matrix.

    Parameters
    ----------
    loaded : LoadedMatrix
    settings : Settings
    clock : GpuClock, optional
        The timer on a GPU; by default a new one. A CPU needs none.
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
    """Sort records for the table: by the number of threads, then in the order of the peers."""
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
        except (SkippedError, ImportError) as reason:  # the peer does not fit the matrix, or is not installed
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
    """Time calls with `threads` threads. A peer that uses one thread is timed only with the first number of threads."""
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
    """Return (times, notes): the median time of each maker's product in seconds, or its error; the samplers' notes."""
    samplers: dict[int, Sampler] = {}
    failed: dict[int, float | Exception] = {}
    for i, make in enumerate(makers):
        try:
            samplers[i] = make()
        except Exception as error:  # the other peers are still measured
            failed[i] = error
    return medians(samplers, repeats) | failed, {i: sampler.note for i, sampler in samplers.items()}


def _with_times(record: Record, note: str, **seconds: float | Exception) -> Record:
    """Return the record with times in microseconds. If a time is an error, the record becomes a failed one."""
    for name, value in seconds.items():
        if isinstance(value, Exception):
            return replace(record, status="failed", note=describe(value))
        record = replace(record, **{name: value * 1e6})  # type: ignore[arg-type]
    return replace(record, note=note)


def describe(error: Exception) -> str:
    """Return the type and the message of an error, in one line."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}"[:300]


def copy_bandwidths(settings: Settings) -> dict[str, float]:
    """Return the bandwidth of a large copy in GB/s for each number of CPU threads ("1", "2"), or for "gpu"."""
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
    """Return the facts on which times depend: machine, device, versions of packages, and date."""
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
