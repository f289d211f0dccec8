"""The products of SciPy and MKL on the CPU. MKL is called through sparse_dot_mkl and through PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from gsparse.bench.peers import LoadedMatrix, Peer, Prepared, SkippedError

# Seconds to wait after a product with OpenMP, whose threads spin for 0.2 s after their work (KMP_BLOCKTIME) on cores
# that the next peer needs.
OPENMP_PAUSE = 0.25


def library_peers(loaded: LoadedMatrix) -> Iterator[Peer]:
    """Yield SciPy, and MKL through each package that calls it. The run skips a package that is not installed."""
    yield Peer("SciPy", "library", lambda: _prepare_scipy(loaded), {})
    yield Peer("MKL (sparse_dot_mkl)", "vendor", lambda: _prepare_mkl(loaded), {}, _set_mkl_threads)
    yield Peer("MKL (PyTorch)", "vendor", lambda: _prepare_torch(loaded), {}, _set_torch_threads)


def library_column_peers(loaded: LoadedMatrix) -> Iterator[Peer]:
    """Yield the same peers for a product with several columns."""
    yield from (replace(peer, label={"columns": loaded.columns}) for peer in library_peers(loaded))


def torch_csr(loaded: LoadedMatrix) -> tuple[Any, Any, Any]:
    """Return the module torch, a tensor in CSR that shares the loaded arrays, and x as a tensor."""
    torch = import_module("torch")
    data, indices, indptr, shape = loaded.arrays
    tensor = partial(
        torch.as_tensor, device=loaded.device.name.replace("gpu", "cuda")
    )  # PyTorch's names are "cpu" and "cuda:0".
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Sparse CSR tensor support is in beta state"
        matrix = torch.sparse_csr_tensor(tensor(indptr), tensor(indices), tensor(data), size=shape)
        return torch, matrix, tensor(loaded.x)


def _prepare_scipy(loaded: LoadedMatrix) -> Prepared:
    S = loaded.arrays.to_scipy()
    return Prepared(lambda: S @ loaded.x, loaded.csr_bytes)


def _prepare_mkl(loaded: LoadedMatrix) -> Prepared:
    mkl = import_module("sparse_dot_mkl")
    S = loaded.arrays.to_scipy()
    return Prepared(lambda: mkl.dot_product_mkl(S, loaded.x), loaded.csr_bytes, pause=OPENMP_PAUSE)


def _set_mkl_threads(threads: int) -> int:
    mkl = import_module("sparse_dot_mkl")
    previous: int = mkl.mkl_get_max_threads()
    mkl.mkl_set_num_threads(threads)
    return previous


def _prepare_torch(loaded: LoadedMatrix) -> Prepared:
    torch, matrix, x = torch_csr(loaded)
    if not torch.backends.mkl.is_available():
        raise SkippedError("this PyTorch is built without MKL")
    product = partial(torch.matmul, matrix, x)
    return Prepared(product, loaded.csr_bytes, result=lambda: product().numpy(), pause=OPENMP_PAUSE)


def _set_torch_threads(threads: int) -> int:
    torch = import_module("torch")
    previous: int = torch.get_num_threads()
    torch.set_num_threads(threads)
    return previous
