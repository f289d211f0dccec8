"""Products of other libraries on a GPU: cuSPARSE in the fastest way, cuSPARSE's SpMVOp, CuPy and PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import POINTER, byref, c_int, c_size_t, c_void_p
from functools import partial
from importlib import import_module
from math import gcd
from typing import Any

import numpy as np

import gsparse
from gsparse.bench import cusparse
from gsparse.bench.cpu_peers import torch_csr
from gsparse.bench.cusparse import (
    ALGORITHMS,
    BLOCK_ALGORITHMS,
    COLUMN_ALGORITHMS,
    SLICE_SIZE,
    CusparseError,
    CusparseProduct,
    to_blocks,
    to_sliced_ell,
)
from gsparse.bench.peers import MAX_PADDING, LoadedMatrix, Peer, Prepared, SkippedError
from gsparse.bench.timing import PRODUCTS_PER_GRAPH, Sampler, seconds_of_call

# Values of cusparseSpMVOpAlg_t.
_ALGORITHMS = {"SpMVOp": 0, "SpMVOp ALG1": 1, "SpMVOp ALG2": 2}

_P = c_void_p
# handle, operation, A, x, y, z, compute type, algorithm
_OPERANDS = (_P, c_int, _P, _P, _P, _P, c_int, c_int)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cusparseSpMVOp_bufferSize": (*_OPERANDS, POINTER(c_size_t)),
    "cusparseSpMVOp_createDescr": (_P, POINTER(_P), *_OPERANDS[1:], _P),
    # handle, descriptor, plan, code of a function that is applied to each element of the result, size of that code
    "cusparseSpMVOp_createPlan": (_P, _P, POINTER(_P), _P, c_size_t),
    # handle, plan, alpha, beta, x, y, z
    "cusparseSpMVOp": (_P,) * 7,
    "cusparseSpMVOp_destroyPlan": (_P,),
    "cusparseSpMVOp_destroyDescr": (_P,),
}


def plan_algorithms() -> tuple[str, ...]:
    """Return the names of SpMVOp's algorithms; none without cuSPARSE, or if it is too old for SpMVOp."""
    try:
        library = cusparse.current_context().library
    except (ImportError, cusparse.CusparseError):
        return ()
    return tuple(_ALGORITHMS) if hasattr(library, "cusparseSpMVOp_createPlan") else ()


class CusparsePlan(CusparseProduct):
    """The product of a CSR matrix with one x into one y by SpMVOp. The algorithm is one of `plan_algorithms`."""

    def _prepare(
        self, matrix: c_void_p, dense: list[c_void_p], value_type: int, algorithm: str, *, preprocess: bool
    ) -> None:
        context, library = self._context, self._library
        for name, types in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, c_int
        operands = (cusparse.NON_TRANSPOSE, matrix, *dense, dense[1], value_type, _ALGORITHMS[algorithm])
        size, descriptor, plan = c_size_t(), c_void_p(), c_void_p()
        context.bind()
        cusparse.check(library, "cusparseSpMVOp_bufferSize", context.handle, *operands, byref(size))
        self._buffer = context.cupy.empty(max(size.value, 16), np.uint8)
        made = (*operands, cusparse.address(self._buffer))
        cusparse.check(library, "cusparseSpMVOp_createDescr", context.handle, byref(descriptor), *made)
        self._descriptors.append(("cusparseSpMVOp_destroyDescr", descriptor))
        cusparse.check(library, "cusparseSpMVOp_createPlan", context.handle, descriptor, byref(plan), None, 0)
        self._descriptors.append(("cusparseSpMVOp_destroyPlan", plan))
        self._name, self._product = "cusparseSpMVOp", library.cusparseSpMVOp
        self._arguments = (context.handle, plan, byref(self._alpha), byref(self._beta), *dense, dense[1])
        self.preprocessed = True


def library_peers(loaded: LoadedMatrix) -> Iterator[Peer]:
    """Yield cuSPARSE's algorithms, CuPy and PyTorch. The run skips PyTorch if it is not installed."""
    for algorithm in ALGORITHMS:
        yield Peer(f"cuSPARSE {algorithm}", "vendor", _cusparse(loaded, algorithm), {})
    for algorithm in plan_algorithms():
        yield Peer(f"cuSPARSE {algorithm}", "vendor", partial(_prepare_csr, loaded, algorithm, CusparsePlan), {})
    for algorithm in BLOCK_ALGORITHMS:
        yield Peer(f"cuSPARSE {algorithm}", "vendor", partial(_prepare_blocks, loaded, algorithm), {})
    yield Peer("CuPy A @ x", "library", lambda: _prepare_cupy(loaded), {})
    yield Peer("PyTorch CSR", "library", lambda: _prepare_torch(loaded), {})


def library_column_peers(loaded: LoadedMatrix) -> Iterator[Peer]:
    """Yield the same peers for several columns; cuSPARSE's algorithms with row-major and column-major X and Y."""
    label = {"columns": loaded.columns}
    for algorithm in COLUMN_ALGORITHMS:
        for layout in ("by rows", "by columns"):
            prepare = partial(_prepare_columns, loaded, algorithm, layout == "by columns")
            yield Peer(f"cuSPARSE {algorithm} {layout}", "vendor", prepare, label)
    for algorithm in BLOCK_ALGORITHMS:
        yield Peer(f"cuSPARSE {algorithm}", "vendor", partial(_prepare_blocks, loaded, algorithm), label)
    yield Peer("CuPy A @ X", "library", lambda: _prepare_cupy(loaded), label)
    yield Peer("PyTorch CSR", "library", lambda: _prepare_torch(loaded), label)


def _prepare_columns(loaded: LoadedMatrix, algorithm: str, by_columns: bool) -> Prepared:
    xp, arrays = loaded.device.xp, loaded.arrays[:3]
    X = xp.asfortranarray(loaded.x) if by_columns else loaded.x
    Y = xp.zeros((loaded.shape[0], loaded.columns), loaded.dtype, order="F" if by_columns else "C")
    make = partial(CusparseProduct, arrays, loaded.shape, loaded.nnz, algorithm, X, Y)
    try:
        product = make()
    except CusparseError:  # Some versions cannot preprocess this algorithm. Other errors occur again below.
        product = make(preprocess=False)
    product.launch()  # Loads the kernels, and fails now if the algorithm is not supported.
    loaded.device.synchronize()
    return Prepared(product.launch, loaded.csr_bytes, product.launch, result=product.result)


def _cusparse(loaded: LoadedMatrix, algorithm: str) -> Callable[[], Prepared]:
    return lambda: _prepare_sell(loaded) if algorithm == "SELL" else _prepare_csr(loaded, algorithm)


def _prepare_csr(loaded: LoadedMatrix, algorithm: str, product: type[CusparseProduct] = CusparseProduct) -> Prepared:
    y = loaded.device.xp.zeros(loaded.shape[0], loaded.dtype)
    # The default algorithm is not preprocessed, as in published figures of "the vendor's default".
    arguments = (loaded.arrays[:3], loaded.shape, loaded.nnz, algorithm, loaded.x, y)
    return _timed_setup(loaded, partial(product, *arguments, preprocess=algorithm != "default"))


def _timed_setup(loaded: LoadedMatrix, make: Callable[[], CusparseProduct]) -> Prepared:
    warm_up = make()  # loads the library and its kernels, so that the timed set-up does not
    loaded.device.synchronize()
    del warm_up
    products: list[CusparseProduct] = []
    setup = seconds_of_call(lambda: products.append(make()), loaded.device.synchronize)
    product = products[0]
    return Prepared(
        call=product.launch,
        nbytes=loaded.csr_bytes,
        launch=product.launch,
        setup_seconds=setup if product.preprocessed else None,
        result=product.result,
    )


def _prepare_sell(loaded: LoadedMatrix) -> Prepared:
    xp, num_rows = loaded.device.xp, loaded.shape[0]
    lengths = xp.zeros(-(-num_rows // SLICE_SIZE) * SLICE_SIZE, "int64")
    lengths[:num_rows] = loaded.arrays.indptr[1:] - loaded.arrays.indptr[:-1]
    padding = int(lengths.reshape(-1, SLICE_SIZE).max(axis=1).sum()) * SLICE_SIZE / max(loaded.nnz, 1)
    if padding > MAX_PADDING:
        raise SkippedError(f"padding ratio {padding:.0f}, above {MAX_PADDING:.0f}")
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


def _prepare_blocks(loaded: LoadedMatrix, algorithm: str) -> Prepared:
    """Prepare the product of the largest full square blocks, with x or with row-major columns."""
    xp, arrays = loaded.device.xp, loaded.arrays[:3]
    A = gsparse.GpuSparseMatrix(arrays, shape=loaded.shape, device=loaded.device)
    rows, columns = A.block_shape
    size = gcd(rows, columns)
    if size == 1:
        raise SkippedError("the matrix does not consist of full square blocks")
    blocks = to_blocks(xp, arrays, size)
    y = xp.zeros((loaded.shape[0], *loaded.x.shape[1:]), loaded.dtype)
    product = CusparseProduct(blocks, loaded.shape, loaded.nnz, algorithm, loaded.x, y, preprocess=False)
    nbytes = loaded.vector_bytes + sum(int(part.nbytes) for part in blocks)
    return Prepared(product.launch, nbytes, product.launch, result=product.result)


def _prepare_cupy(loaded: LoadedMatrix) -> Prepared:
    sparse = import_module("cupyx.scipy.sparse")
    # The arrays are copied, because CuPy adds duplicates up in place before the first product.
    A = sparse.csr_matrix(loaded.arrays[:3], shape=loaded.shape, copy=True)
    return Prepared(lambda: A @ loaded.x, loaded.csr_bytes, result=lambda: loaded.device.xp.asnumpy(A @ loaded.x))


def _prepare_torch(loaded: LoadedMatrix) -> Prepared:
    torch, matrix, x = torch_csr(loaded)
    call = partial(torch.matmul, matrix, x)
    return Prepared(
        call=call,
        nbytes=loaded.csr_bytes,
        sampler=lambda: _torch_sampler(torch, call),
        result=lambda: call().cpu().numpy(),
    )


def _torch_sampler(torch: Any, call: Callable[[], Any]) -> Sampler:
    """Return a sampler of a product in a CUDA graph of PyTorch, or of eager calls if it cannot be captured.

    The graph is PyTorch's, because PyTorch uses neither CuPy's streams nor its memory.
    """
    call()
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # the graph's private memory pool reuses the memory of results
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
