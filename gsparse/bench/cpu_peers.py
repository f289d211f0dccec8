"""SciPy's product and MKL's, which PyTorch calls too, on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import scipy.sparse as sp

from gsparse.bench.peers import Loaded, Peer, Prepared, SkippedError

__all__ = ["library_column_peers", "library_peers", "torch_csr"]

# OpenMP's threads spin for 0.2 s after their work (KMP_BLOCKTIME), on the cores of whoever is timed next.
OPENMP_REST = 0.25


def library_peers(loaded: Loaded) -> Iterator[Peer]:
    """Give SciPy, and MKL through whichever package reaches it."""
    yield Peer("SciPy", "library", lambda: _prepare_scipy(loaded), {})
    if find_spec("sparse_dot_mkl"):
        yield Peer("MKL (sparse_dot_mkl)", "vendor", lambda: _prepare_mkl(loaded), {}, _set_mkl_threads)
    if find_spec("torch"):
        yield Peer("MKL (PyTorch)", "vendor", lambda: _prepare_torch(loaded), {}, _set_torch_threads)


def library_column_peers(loaded: Loaded) -> Iterator[Peer]:
    """Give the same for several columns."""
    yield from (replace(peer, label={"columns": loaded.columns}) for peer in library_peers(loaded))


def scipy_matrix(loaded: Loaded) -> Any:
    """Give SciPy's matrix of the same arrays."""
    data, indices, indptr, shape = loaded.arrays
    return sp.csr_array((data, indices, indptr), shape=shape)


def torch_csr(loaded: Loaded) -> tuple[Any, Any, Any]:
    """Give PyTorch, its matrix of the same memory, and x."""
    torch = import_module("torch")
    data, indices, indptr, shape = loaded.arrays
    tensor = partial(torch.as_tensor, device=loaded.device.name.replace("gpu", "cuda"))  # "cpu", "cuda:0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Sparse CSR tensor support is in beta state"
        matrix = torch.sparse_csr_tensor(tensor(indptr), tensor(indices), tensor(data), size=shape)
        return torch, matrix, tensor(loaded.x)


def _prepare_scipy(loaded: Loaded) -> Prepared:
    S = scipy_matrix(loaded)
    return Prepared(lambda: S @ loaded.x, loaded.csr_bytes)


def _prepare_mkl(loaded: Loaded) -> Prepared:
    try:
        mkl = import_module("sparse_dot_mkl")
    except ImportError as error:  # it is installed, MKL itself is not
        raise SkippedError(str(error)) from error
    S = scipy_matrix(loaded)
    return Prepared(lambda: mkl.dot_product_mkl(S, loaded.x), loaded.csr_bytes, rest=OPENMP_REST)


def _set_mkl_threads(threads: int) -> None:
    import_module("sparse_dot_mkl").mkl_set_num_threads(threads)


def _prepare_torch(loaded: Loaded) -> Prepared:
    torch, matrix, x = torch_csr(loaded)
    if not torch.backends.mkl.is_available():
        raise SkippedError("this PyTorch is built without MKL")
    product = partial(torch.matmul, matrix, x)
    return Prepared(product, loaded.csr_bytes, result=lambda: product().numpy(), rest=OPENMP_REST)


def _set_torch_threads(threads: int) -> None:
    import_module("torch").set_num_threads(threads)
