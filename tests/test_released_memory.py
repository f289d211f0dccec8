"""Matrices and preconditioners are freed with the last reference, and not only when Python looks for reference cycles.

Python does not know how much memory of a GPU an object in a reference cycle keeps.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import gsparse.linalg as gla
from gsparse import FORMATS, GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.distributed import Communicator, RankMatrix, RowPartition, run_ranks
from gsparse.formats.registry import find_format
from gsparse.products.storage import MatrixPreparation
from gsparse.products.structure import Part, Structure, releasable, scratch
from tests.linalg.problems import laplacian, right_hand_side

S = laplacian(10)
B = right_hand_side(S)
FIELDS = [slice(50), slice(50, None)]

PRECONDITIONERS: dict[str, Callable[[Any], Any]] = {
    "jacobi": gla.jacobi,
    "block_jacobi": lambda A: gla.block_jacobi(A, 4),
    "gauss_seidel": gla.gauss_seidel,
    "chebyshev_polynomial": gla.chebyshev_polynomial,
    "isai": gla.isai,
    "ic0": gla.ic0,
    "ilu0": gla.ilu0,
    "amg": lambda A: gla.amg(A, max_coarse=20),
    "amg, W-cycle": lambda A: gla.amg(A, max_coarse=20, cycle="W"),
    "amg, float32": lambda A: gla.amg(A, max_coarse=20, dtype="float32"),
    "amg, updated": lambda A: gla.amg(A, max_coarse=20).update(A),
    "fieldsplit": lambda A: gla.fieldsplit(A, FIELDS, form="full", solvers="amg"),
}
USES: dict[str, Callable[[GpuSparseMatrix], Any]] = {
    "product": lambda A: A @ B,
    "products": lambda A: A.T @ np.stack([B, B, B], axis=1),
    "algebra": lambda A: (A @ A, A + A.T, 2 * A),
    "printed": lambda A: (str(A), str(A.plan), A.stats),
    "accelerated": lambda A: A.accelerated() @ B,
    "solve": lambda A: gla.solve(A, B),
    "spsolve": lambda A: gla.spsolve(A, B),
    "eigsh": lambda A: gla.eigsh(A, k=2),
    "svds": lambda A: gla.svds(A, k=2),
    "expm_multiply": lambda A: gla.expm_multiply(A, B),
    **{
        name: lambda A, name=name: getattr(gla, name)(A, B)  # type: ignore[misc]
        for name in ("cg", "gmres", "fgmres", "bicgstab", "minres", "lsqr", "lsmr")
    },
}


@pytest.fixture(autouse=True)
def no_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def is_freed_after(make: Callable[[], Any], use: Callable[[Any], Any]) -> bool:
    made = make()
    use(made)
    reference = weakref.ref(made)
    del made
    return reference() is None


@pytest.mark.parametrize("name", PRECONDITIONERS)
def test_a_preconditioner_is_freed_after_a_solve(real_device: Device, name: str) -> None:
    A = GpuSparseMatrix(S, device=real_device)
    assert is_freed_after(lambda: PRECONDITIONERS[name](A), lambda M: gla.gmres(A, B, M=M))
    assert is_freed_after(lambda: PRECONDITIONERS[name](A), lambda M: M @ B)


@pytest.mark.parametrize("name", USES)
def test_a_matrix_is_freed_after_its_use(real_device: Device, name: str) -> None:
    assert is_freed_after(lambda: GpuSparseMatrix(S, device=real_device), USES[name])


def arrays_of(structure: Structure) -> set[tuple[type[Part], type]]:
    """Return the parts that have arrays, each with the kind of these arrays."""
    kinds = {(cls, type(getattr(cls, name, None))) for cls, part in structure._parts.items() for name in vars(part)}
    return {(cls, kind) for cls, kind in kinds if issubclass(kind, releasable)}


@pytest.mark.parametrize("name", FORMATS[1:])
def test_a_product_keeps_the_arrays_of_its_format_alone(real_device: Device, name: str) -> None:
    A = GpuSparseMatrix(S, device=real_device, format=name)
    prepared = A._prepared()[0]
    structure = prepared.structure
    for other in FORMATS[1:]:
        MatrixPreparation(structure, prepared.csr, A.dtype).stored(other)
    assert scratch in {kind for _, kind in arrays_of(structure)}
    A @ B
    assert arrays_of(structure) == {(cls, releasable) for cls in find_format(name).parts}
    structure.release()
    assert arrays_of(structure) == set()
    reference = weakref.ref(structure)
    del A, prepared, structure
    assert reference() is None


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_matrix_of_a_rank_and_its_multigrid_are_freed(real_device: Device, world_size: int) -> None:
    if world_size > 1 and not real_device.is_host:
        pytest.skip("needs a GPU for each rank")
    partition = RowPartition.by_nnz(S.indptr, world_size)

    def are_freed(communicator: Communicator) -> tuple[bool, bool]:
        own, multigrid = partition.rows(communicator.rank), []

        def set_up_and_solve(A: RankMatrix) -> None:
            b, make = real_device.upload(B[own]), partial(gla.amg, A, max_coarse=20)
            multigrid.append(is_freed_after(make, lambda M: gla.cg(A, b, M=M)))

        matrix = is_freed_after(
            lambda: RankMatrix(S[own], partition, partition, communicator, real_device), set_up_and_solve
        )
        return matrix, *multigrid

    assert set(run_ranks(are_freed, world_size)) == {(True, True)}
