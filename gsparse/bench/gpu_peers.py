"""cuSPARSE as a caller who knows it uses it, CuPy's ``A @ x``, and PyTorch's CSR product, on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from gsparse.bench.cpu_peers import torch_csr
from gsparse.bench.cusparse import (
    ALGORITHMS,
    COLUMN_ALGORITHMS,
    SLICE_SIZE,
    CusparseError,
    CusparseProduct,
    to_sliced_ell,
)
from gsparse.bench.peers import MAX_PADDING, Loaded, Peer, Prepared, SkippedError
from gsparse.bench.timing import PRODUCTS_PER_GRAPH, Sampler, once

__all__ = ["library_column_peers", "library_peers"]


def library_peers(loaded: Loaded) -> Iterator[Peer]:
    """Give cuSPARSE's algorithms, CuPy and, where installed, PyTorch."""
    for algorithm in ALGORITHMS:
        yield Peer(f"cuSPARSE {algorithm}", "vendor", _cusparse(loaded, algorithm), {})
    yield Peer("CuPy A @ x", "library", lambda: _prepare_cupy(loaded), {})
    if find_spec("torch"):
        yield Peer("PyTorch CSR", "library", lambda: _prepare_torch(loaded), {})


def library_column_peers(loaded: Loaded) -> Iterator[Peer]:
    """Give the same for several columns: cuSPARSE's algorithms for X and Y by rows and by columns."""
    label = {"columns": loaded.columns}
    for algorithm in COLUMN_ALGORITHMS:
        for layout in ("by rows", "by columns"):
            prepare = partial(_prepare_columns, loaded, algorithm, layout == "by columns")
            yield Peer(f"cuSPARSE {algorithm} {layout}", "vendor", prepare, label)
    yield Peer("CuPy A @ X", "library", lambda: _prepare_cupy(loaded), label)
    if find_spec("torch"):
        yield Peer("PyTorch CSR", "library", lambda: _prepare_torch(loaded), label)


def _prepare_columns(loaded: Loaded, algorithm: str, by_columns: bool) -> Prepared:
    xp, arrays = loaded.device.xp, loaded.arrays[:3]
    X = xp.asfortranarray(loaded.x) if by_columns else loaded.x
    Y = xp.zeros((loaded.shape[0], loaded.columns), loaded.dtype, order="F" if by_columns else "C")
    make = partial(CusparseProduct, arrays, loaded.shape, loaded.nnz, algorithm, X, Y)
    try:
        product = make()
    except CusparseError:  # (not every algorithm can be preprocessed in every version; what else is wrong shows again)
        product = make(preprocess=False)
    product.launch()  # loads its kernels, and refuses here what it does not support
    loaded.device.synchronize()
    return Prepared(product.launch, loaded.csr_bytes, product.launch, result=product.result)


def _cusparse(loaded: Loaded, algorithm: str) -> Callable[[], Prepared]:
    return lambda: _prepare_sell(loaded) if algorithm == "SELL" else _prepare_csr(loaded, algorithm)


def _prepare_csr(loaded: Loaded, algorithm: str) -> Prepared:
    xp, arrays = loaded.device.xp, loaded.arrays[:3]
    y = xp.zeros(loaded.shape[0], loaded.dtype)
    # The default algorithm as it comes, without analysis: what "the vendor's default" means in published figures.
    make = partial(
        CusparseProduct, arrays, loaded.shape, loaded.nnz, algorithm, loaded.x, y, preprocess=algorithm != "default"
    )
    first = make()  # loads the library and its kernels
    loaded.device.synchronize()
    del first
    made: list[CusparseProduct] = []
    setup = once(lambda: made.append(make()), loaded.device.synchronize)
    product = made[0]
    return Prepared(
        call=product.launch,
        nbytes=loaded.csr_bytes,
        launch=product.launch,
        setup_seconds=setup if product.preprocessed else None,
        result=product.result,
    )


def _prepare_sell(loaded: Loaded) -> Prepared:
    xp, num_rows = loaded.device.xp, loaded.shape[0]
    lengths = xp.zeros(-(-num_rows // SLICE_SIZE) * SLICE_SIZE, "int64")
    lengths[:num_rows] = loaded.arrays.indptr[1:] - loaded.arrays.indptr[:-1]
    padding = int(lengths.reshape(-1, SLICE_SIZE).max(axis=1).sum()) * SLICE_SIZE / max(loaded.nnz, 1)
    if padding > MAX_PADDING:
        raise SkippedError(f"padding {padding:.0f}, above {MAX_PADDING:.0f}")
    arrays = to_sliced_ell(xp, loaded.arrays[:3], num_rows)
    y = xp.zeros(num_rows, loaded.dtype)
    product = CusparseProduct(arrays, loaded.shape, loaded.nnz, "SELL", loaded.x, y)
    return Prepared(
        call=product.launch,
        nbytes=loaded.vector_bytes + sum(int(part.nbytes) for part in arrays),
        launch=product.launch,
        result=product.result,
        label={"padding": padding},
    )


def _prepare_cupy(loaded: Loaded) -> Prepared:
    sparse = import_module("cupyx.scipy.sparse")
    # A copy: CuPy adds duplicates up in place before the first product.
    A = sparse.csr_matrix(loaded.arrays[:3], shape=loaded.shape, copy=True)
    return Prepared(lambda: A @ loaded.x, loaded.csr_bytes, result=lambda: loaded.device.xp.asnumpy(A @ loaded.x))


def _prepare_torch(loaded: Loaded) -> Prepared:
    torch, matrix, x = torch_csr(loaded)
    call = partial(torch.matmul, matrix, x)
    return Prepared(
        call=call,
        nbytes=loaded.csr_bytes,
        sampler=lambda: _torch_sampler(torch, call),
        result=lambda: call().cpu().numpy(),
    )


def _torch_sampler(torch: Any, call: Callable[[], Any]) -> Sampler:
    """Time a product captured in PyTorch's own graph, with its own streams and memory; eager where it cannot be."""
    call()
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # (with memory of its own, where each result takes the last one's place)
            for _ in range(PRODUCTS_PER_GRAPH):
                call()
        sample = _torch_events(torch, graph.replay)
        sample()
        return Sampler(sample)
    except Exception as error:
        torch.cuda.synchronize()
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        return Sampler(
            _torch_events(torch, lambda: [call() for _ in range(PRODUCTS_PER_GRAPH)]),
            f"events around {PRODUCTS_PER_GRAPH} eager calls, not captured ({reason})",
        )


def _torch_events(torch: Any, run: Callable[[], Any]) -> Callable[[], float]:
    def sample() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / PRODUCTS_PER_GRAPH / 1e3

    return sample
