"""Who is timed: gsparse's formats and its plan's choice here, the libraries beside them in `cpu_peers`, `gpu_peers`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import gsparse
from gsparse.bench.problems import Arrays, Problem
from gsparse.bench.timing import Sampler, once, peak_bytes
from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import FormatError

__all__ = ["Loaded", "Peer", "Prepared", "SkippedError", "format_peers", "load"]

# Beyond these a format is left out: what it would take tells nothing but that it does not fit.
MAX_PADDING = 20.0
MAX_PREDICTED_RATIO = 30.0

SEED = 1


class SkippedError(Exception):
    """One way of multiplying does not fit the matrix; the message says why."""


@dataclass(frozen=True)
class Loaded:
    """A matrix on the device where it is measured, with a vector.

    Attributes
    ----------
    name : str
    arrays : Arrays
        Of the device, values of the measured type.
    x : array, shape (num_cols,) or (num_cols, k)
    device : Device
    longest : int
        Entries of the longest row.
    """

    name: str
    arrays: Arrays
    x: Array
    device: Device
    longest: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.arrays.shape

    @property
    def nnz(self) -> int:
        return int(self.arrays.indices.size)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.arrays.data.dtype
        return dtype

    @property
    def columns(self) -> int:
        """Columns of x."""
        return 1 if self.x.ndim == 1 else int(self.x.shape[1])

    @property
    def vector_bytes(self) -> int:
        """Bytes of x and y once."""
        return sum(self.shape) * self.columns * self.dtype.itemsize

    @property
    def csr_bytes(self) -> int:
        """Bytes of the CSR arrays, x and y once."""
        return self.vector_bytes + sum(int(part.nbytes) for part in self.arrays[:3])


@dataclass(frozen=True)
class Prepared:
    """A product ready to run.

    Attributes
    ----------
    call : callable
        A·x as a user writes it, the result left on the device.
    nbytes : int
        Bytes of the matrix as stored, and of x and y once.
    launch : callable, optional
        The product into a vector that is kept, for timing on a GPU; `call` where left out.
    sampler : callable, optional
        Gives a `Sampler` of the kernel, for a library with streams of its own.
    setup_seconds : float, optional
        What the conversion or analysis took, warm.
    result : callable, optional
        Gives the product as a host array; of `call` where left out.
    label : dict
        More fields of the `Record`.
    rest : float
        Seconds to wait after it ran on several threads, see `Sampler`.
    """

    call: Callable[[], Any]
    nbytes: int
    launch: Callable[[], Any] | None = None
    sampler: Callable[[], Sampler] | None = None
    setup_seconds: float | None = None
    result: Callable[[], Any] | None = None
    label: dict[str, Any] | None = None
    rest: float = 0.0


@dataclass(frozen=True)
class Peer:
    """One way of multiplying, not yet prepared.

    Attributes
    ----------
    what, kind : str
        As in `Record`.
    prepare : callable
        Gives a `Prepared`; raises `SkippedError` where it does not fit, anything where it fails.
    label : dict
        Fields of the `Record` known beforehand.
    set_threads : callable, optional
        Sets the CPU threads of its products; left out by what knows only one.
    """

    what: str
    kind: str
    prepare: Callable[[], Prepared]
    label: dict[str, Any]
    set_threads: Callable[[int], Any] | None = None


def load(problem: Problem, device: Device, dtype: Any) -> Loaded:
    """Make a problem on a device, with values of a type."""
    xp = device.xp
    arrays = problem.make(xp)
    if arrays.data.dtype.kind == "c":
        raise SkippedError(f"{problem.name} is complex, and {dtype} holds no such values")
    arrays = arrays._replace(data=arrays.data.astype(dtype, copy=False))
    lengths = arrays.indptr[1:] - arrays.indptr[:-1]
    x = xp.random.default_rng(SEED).random(arrays.shape[1]) - 0.5
    return Loaded(problem.name, arrays, x.astype(dtype), device, int(lengths.max()) if lengths.size else 0)


def format_peers(loaded: Loaded, formats: Sequence[str] = (), threads_per_block: Sequence[int] = ()) -> Iterator[Peer]:
    """Give gsparse's formats as they are asked for by name, and the plan's own choice.

    Parameters
    ----------
    loaded : Loaded
    formats : sequence of str
        Names out of `gsparse.FORMATS`; all of them where empty.
    threads_per_block : sequence of int
        Launch shapes to try; the default alone where empty.
    """
    base = _matrix(loaded, None)
    fastest = min((c.seconds for c in base.plan.candidates), default=0.0)
    limit = MAX_PREDICTED_RATIO * fastest
    names = formats or gsparse.FORMATS
    for name in names:
        if name == "auto":
            continue
        for threads in threads_per_block or (None,):
            for compress in _compressions():
                yield _format_peer(loaded, base, "format", _options(name, threads, compress), limit)
    if "auto" in names:
        yield _format_peer(loaded, base, "plan", {"format": "auto"}, np.inf)


def _compressions() -> tuple[bool | None, ...]:
    """Give the values `compress` may take, or only None where the constructor does not know the word."""
    known = "compress" in inspect.signature(gsparse.GpuSparseMatrix.__init__).parameters
    return (True, False) if known else (None,)


def _options(name: str, threads: int | None, compress: bool | None) -> dict[str, Any]:
    options = {"format": name, "threads_per_block": threads, "compress": compress}
    return {k: v for k, v in options.items() if v is not None}


def _matrix(loaded: Loaded, base: Any, **options: Any) -> Any:
    """Make a matrix of the loaded arrays; from `base`, whose arrays it shares, where there is one."""
    source = loaded.arrays[:3] if base is None else base
    return gsparse.GpuSparseMatrix(source, shape=loaded.shape, device=loaded.device, **options)


def _format_peer(loaded: Loaded, base: Any, kind: str, options: dict[str, Any], limit: float) -> Peer:
    compress, threads = options.get("compress"), options.get("threads_per_block")
    what = "plan" if kind == "plan" else options["format"] + (f"/{threads}" if threads else "")
    what += " plain" if compress is False else ""
    label = {"threads_per_block": threads, "compressed": compress}
    label |= {"format": options["format"]} if kind == "format" else {}
    prepare = partial(_prepare_format, loaded, base, options, limit)
    return Peer(what, kind, prepare, label, gsparse.set_num_threads)


def _prepare_format(loaded: Loaded, base: Any, options: dict[str, Any], limit: float) -> Prepared:
    try:
        A = _matrix(loaded, base, **options)
        chosen = next(c for c in A.plan.candidates if c.format == A.plan.format)
    except FormatError as error:
        raise SkippedError(str(error)) from error
    if chosen.padding_ratio > MAX_PADDING and options["format"] != "auto":
        raise SkippedError(f"padding {chosen.padding_ratio:.0f}, above {MAX_PADDING:.0f}")
    if chosen.seconds > limit:
        raise SkippedError(f"predicted {chosen.seconds * 1e6:.0f} µs, above {MAX_PREDICTED_RATIO:.0f} times the best")
    if options.get("compress") is False and _same_bytes(A, _matrix(loaded, base, **options | {"compress": True})):
        raise SkippedError("nothing to compress: as above")
    _ = A.stored  # compiles

    def build() -> None:
        _ = _matrix(loaded, None, **options).stored

    setup = min(once(build, loaded.device.synchronize) for _ in range(3))
    y = loaded.device.xp.empty(loaded.shape[0], loaded.dtype)
    return Prepared(
        call=lambda: A @ loaded.x,
        nbytes=A.stored.nbytes + loaded.vector_bytes,
        launch=lambda: A.matvec(loaded.x, out=y),
        setup_seconds=setup,
        label={
            "format": A.plan.format,
            "padding": float(chosen.padding_ratio),
            "predicted_us": chosen.seconds * 1e6,
            "peak": _peak(loaded, build),
        },
    )


def _peak(loaded: Loaded, build: Callable[[], None]) -> float | None:
    if loaded.device.kind != "gpu" or not loaded.nnz:
        return None
    csr = loaded.csr_bytes - loaded.vector_bytes
    return (peak_bytes(loaded.device.xp, build) + csr) / csr


def _same_bytes(A: Any, other: Any) -> bool:
    """Tell whether two matrices in the same format are stored in as many bytes, without storing them."""
    first, second = (next(c for c in M.plan.candidates if c.format == M.plan.format) for M in (A, other))
    return bool(first.nbytes == second.nbytes)
