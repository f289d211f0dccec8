"""The products that are timed, called peers.

This file has the products in gsparse's formats and by its plan; other libraries are in `cpu_peers` and `gpu_peers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import gsparse
from gsparse.bench.problems import Arrays, Problem
from gsparse.bench.timing import Sampler, peak_bytes, seconds_of_call
from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import FormatError

# A format is skipped if its padding ratio is above MAX_PADDING, or if its predicted time divided by that of the fastest
# candidate is above MAX_PREDICTED_RATIO. It clearly does not fit the matrix, so its time would add no information.
MAX_PADDING = 20.0
MAX_PREDICTED_RATIO = 30.0

SEED = 1


class SkippedError(Exception):
    """A peer does not fit the matrix. The message says why."""


@dataclass(frozen=True)
class LoadedMatrix:
    """A matrix on the device where it is measured, and the x by which it is multiplied.

    Attributes
    ----------
    name : str
    arrays : Arrays
        Arrays on the device, with values of the measured dtype.
    x : array, shape (num_cols,) or (num_cols, k)
    device : Device
    longest : int
        Number of entries of the longest row.
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
        """Number of columns of x."""
        return 1 if self.x.ndim == 1 else int(self.x.shape[1])

    @property
    def vector_bytes(self) -> int:
        """Bytes of x and y, each counted once."""
        return sum(self.shape) * self.columns * self.dtype.itemsize

    @property
    def csr_bytes(self) -> int:
        """Bytes of the CSR arrays, x and y, each counted once."""
        return self.vector_bytes + sum(int(part.nbytes) for part in self.arrays[:3])


@dataclass(frozen=True)
class Prepared:
    """A product that is ready to run.

    Attributes
    ----------
    call : callable
        Computes A·x as a user writes it. The result stays on the device.
    nbytes : int
        Bytes of the stored matrix, x and y, each counted once.
    launch : callable, optional
        Writes the product to an existing array, for timing on a GPU. By default `call`.
    sampler : callable, optional
        Returns a `Sampler` of the kernel, for a library that uses its own streams.
    setup_seconds : float, optional
        Time of the conversion or analysis, without compilation.
    result : callable, optional
        Returns the product as a host array. By default, the result of `call`.
    label : dict
        Further fields of the `Record`.
    pause : float
        Seconds to wait after a product on several threads, see `Sampler`.
    """

    call: Callable[[], Any]
    nbytes: int
    launch: Callable[[], Any] | None = None
    sampler: Callable[[], Sampler] | None = None
    setup_seconds: float | None = None
    result: Callable[[], Any] | None = None
    label: dict[str, Any] | None = None
    pause: float = 0.0


@dataclass(frozen=True)
class Peer:
    """A product that has not been prepared yet.

    Attributes
    ----------
    what, kind : str
        The fields of the `Record` with these names.
    prepare : callable
        Returns a `Prepared`. It raises `SkippedError` if the peer does not fit the matrix, and other errors if it
        fails.
    label : dict
        Further fields of the `Record` that are known in advance.
    set_threads : callable, optional
        Sets the number of CPU threads of the library, and returns the previous number. None if the library uses one
        thread.
    """

    what: str
    kind: str
    prepare: Callable[[], Prepared]
    label: dict[str, Any]
    set_threads: Callable[[int], int] | None = None


def set_threads(threads: int) -> int:
    """Set the number of CPU threads of gsparse, and return the previous number."""
    previous = gsparse.get_num_threads()
    gsparse.set_num_threads(threads)
    return previous


def load(problem: Problem, device: Device, dtype: Any) -> LoadedMatrix:
    """Make the matrix of a problem on a device, with values of the given dtype.

    Raises
    ------
    SkippedError
        If the matrix is complex.
    """
    xp = device.xp
    arrays = problem.make(xp)
    if arrays.data.dtype.kind == "c":
        raise SkippedError(f"{problem.name} is complex, and {dtype} cannot hold complex values")
    arrays = arrays._replace(data=arrays.data.astype(dtype, copy=False))
    lengths = arrays.indptr[1:] - arrays.indptr[:-1]
    x = xp.random.default_rng(SEED).random(arrays.shape[1]) - 0.5
    return LoadedMatrix(problem.name, arrays, x.astype(dtype), device, int(lengths.max()) if lengths.size else 0)


def format_peers(loaded: LoadedMatrix, formats: Sequence[str] = ()) -> Iterator[Peer]:
    """Yield a peer for each format, requested by name, and a peer for the format that the plan chooses ("auto").

    Parameters
    ----------
    loaded : LoadedMatrix
    formats : sequence of str
        Names in `gsparse.FORMATS`; if empty, all of them. Each format has a second peer without compression.
    """
    base = _matrix(loaded, None)
    limit = MAX_PREDICTED_RATIO * min((c.seconds for c in base.plan.candidates), default=0.0)
    names = formats or gsparse.FORMATS
    for name in names:
        for compress in (True, False) if name != "auto" else ():
            what = name if compress else f"{name} plain"
            prepare = partial(_prepare_format, loaded, base, {"format": name, "compress": compress}, limit)
            yield Peer(what, "format", prepare, {"compressed": compress, "format": name}, set_threads)
    if "auto" in names:
        yield Peer("plan", "plan", partial(_prepare_format, loaded, base, {"format": "auto"}, np.inf), {}, set_threads)


def _matrix(loaded: LoadedMatrix, base: Any, **options: Any) -> Any:
    """Make a matrix from the loaded arrays, or from `base`, whose arrays it shares, if that is not None."""
    source = loaded.arrays[:3] if base is None else base
    return gsparse.GpuSparseMatrix(source, shape=loaded.shape, device=loaded.device, **options)


def _prepare_format(loaded: LoadedMatrix, base: Any, options: dict[str, Any], limit: float) -> Prepared:
    try:
        A = _matrix(loaded, base, **options)
        chosen = next(c for c in A.plan.candidates if c.format == A.plan.format)
    except FormatError as error:
        raise SkippedError(str(error)) from error
    if chosen.padding_ratio > MAX_PADDING and options["format"] != "auto":
        raise SkippedError(f"padding ratio {chosen.padding_ratio:.0f}, above {MAX_PADDING:.0f}")
    if chosen.seconds > limit:
        raise SkippedError(f"predicted {chosen.seconds * 1e6:.0f} µs, above {MAX_PREDICTED_RATIO:.0f} times the best")
    if options.get("compress") is False and _same_bytes(A, _matrix(loaded, base, **options | {"compress": True})):
        raise SkippedError("nothing to compress: the same as the line above")
    _ = A.stored  # compiles the kernels of the conversion before it is timed

    def build() -> None:
        _ = _matrix(loaded, None, **options).stored

    setup = min(seconds_of_call(build, loaded.device.synchronize) for _ in range(3))
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


def _peak(loaded: LoadedMatrix, build: Callable[[], None]) -> float | None:
    if loaded.device.kind != "gpu" or not loaded.nnz:
        return None
    csr = loaded.csr_bytes - loaded.vector_bytes
    return (peak_bytes(loaded.device.xp, build) + csr) / csr


def _same_bytes(A: Any, other: Any) -> bool:
    """Return whether the chosen candidates of two matrices have the same number of bytes. Neither is converted."""
    first, second = (next(c for c in M.plan.candidates if c.format == M.plan.format) for M in (A, other))
    return bool(first.nbytes == second.nbytes)
