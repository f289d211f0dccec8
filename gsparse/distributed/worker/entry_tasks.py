"""Functions that read or save a rank's entries, or multiply by the client's vectors. No rank waits for another rank."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from distributed import get_worker, worker_client

from gsparse.distributed.worker.rank import Rank, find_rank
from gsparse.linalg.norms import norm
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.writing import new_file, rename

HostArray = npt.NDArray[Any]


def rows(rank: Rank, numbers: HostArray | None = None) -> sp.csr_array:
    """Return the rank's rows with these numbers; None means all. The rank's first row has the number 0."""
    return rank.require_matrix().rows_on_host(numbers)


def rows_between(key: str, start: int, stop: int) -> sp.csr_array:
    """Return some rows of the rank with this key. Runs as a dask task, on the rank's worker."""
    return rows(find_rank(key), np.arange(start, stop))


def whole_rows(key: str) -> GpuSparseMatrix:
    """Return a copy of the rows of the rank with this key, on its device. Runs as a dask task, on the rank's worker."""
    return find_rank(key).require_matrix().whole_rows().copy()


def number_of_entries(rank: Rank) -> HostArray:
    """Return the number of stored entries of each of a rank's rows."""
    return rank.require_matrix().row_lengths()


def entries_in(rank: Rank, columns: HostArray | int) -> HostArray:
    """Return the element of each of the rank's rows in one column. `columns` is as in `RankMatrix.entries_in`."""
    return rank.require_matrix().entries_in(columns)


def reduce_rows(rank: Rank, name: str, axis: int | None) -> Any:
    """Reduce a rank's rows by `RankMatrix.reduce_rows`. Without an axis, return None if the rank has no rows."""
    matrix = rank.require_matrix()
    return matrix.reduce_rows(name, axis) if axis is not None or matrix.shape[0] else None


def column_sums(rank: Rank, power: int = 0) -> tuple[HostArray, HostArray, HostArray]:
    """Add up the elements of a rank's rows in each column.

    Parameters
    ----------
    power : {0, 1, 2}
        1 adds up magnitudes, and 2 their squares, in floating point.

    Returns
    -------
    array, array of int64, array
        The sums of the columns that the rank owns; the numbers of the other columns whose sums are not 0; their sums.
    """
    matrix = rank.require_matrix()
    with matrix.device.active():
        values, own = matrix.whole_rows(), matrix.columns.rows(rank.number)
        if power:
            values = abs(
                values.astype(np.result_type(values.dtype, np.float64)) if values.dtype.kind in "biu" else values
            )
        sums = (values.power(2) if power == 2 else values).sum(axis=0)
    is_sent = sums != 0
    is_sent[own] = False
    numbers = np.flatnonzero(is_sent)
    return sums[own], numbers, sums[numbers]


def row_norms(rank: Rank, ord: Any, axis: int | None) -> Any:
    """Return the norm of each of a rank's rows (axis 1), or of all of its rows as a matrix (None)."""
    matrix = rank.require_matrix()
    with matrix.device.active():
        return norm(matrix.whole_rows(), ord, axis)


def description(rank: Rank) -> tuple[int, str]:
    """Return the bytes that a product of a rank moves, and the format of its diagonal block."""
    matrix = rank.require_matrix()
    with matrix.device.active():
        moved = sum(block.plan.chosen.nbytes for block in matrix.matrices)
        return moved, matrix.diagonal.plan.chosen.format


def value_counts(rank: Rank, columns: HostArray | None, ghosts: HostArray | None) -> HostArray:
    """Compute the order of values for `RankMatrix.with_data`. Return the number of values of each row.

    `columns` and `ghosts` are passed to `RankMatrix.entry_order`.
    """
    return rank.require_matrix().entry_order(columns, ghosts).row_lengths


# Checkpoints. A new checkpoint replaces the old one as a whole, even if a process ends while the new one is written:
#
#     save       every rank writes its rows to a file in a new folder, and syncs it to disk
#     publish    rank 0 makes the link `rows` point to the new folder, and removes the folders of older checkpoints
#
# Replacing the link is one atomic operation, and all files are complete before it.

# The name of the link, and a pattern of the names of folders, which are 32 hexadecimal digits.
LINK = "rows"
_FOLDERS = "[0-9a-f]" * 32


def save(rank: Rank, folder: Path, name: str, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Save a rank's rows, and further arrays by name, as a file `name` in SciPy's .npz format in a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with new_file(folder / name) as file:
        sp.save_npz(file, rank.require_matrix().rows_on_host(), compressed=False)
        with ZipFile(file, "a") as archive:
            for array, values in arrays.items():
                with archive.open(f"{array}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, values, allow_pickle=False)


def publish(rank: Rank, folder: Path) -> None:
    """Make the link `rows` point to a folder in which all ranks have saved their rows. Remove older checkpoints."""
    new_link = folder.with_name(f".{folder.name}")
    new_link.symlink_to(folder.name)
    rename(new_link, folder.with_name(LINK))
    for other in folder.parent.glob(_FOLDERS):
        if other != folder:
            discard(rank, other)


def discard(rank: Rank, folder: Path) -> None:
    """Remove the folder of an abandoned or an older checkpoint."""
    shutil.rmtree(folder, ignore_errors=True)


def multiply(rank: Rank, x: HostArray, ghosts: HostArray, operation: str) -> Any:
    """Multiply a rank's two blocks by vectors, without the other ranks. `x` has the rank's part of the vectors.

    If `operation` is "plain", return the rank's part of the product. `ghosts` has the entries of the vectors in the
    columns `matrix.ghosts`. For "transposed" and "adjoint", `ghosts` is not used, and the result is a tuple of the
    rank's contributions to its own part of the product and to its ghosts.
    """
    matrix = rank.require_matrix()
    diagonal, off_diagonal, boundary = matrix.diagonal, matrix.off_diagonal, matrix.boundary
    with matrix.device.active():
        if operation == "plain":
            y, boundary_y = diagonal @ x, off_diagonal @ ghosts
            y = y.astype(np.result_type(y, boundary_y), copy=False)
            y[boundary] += boundary_y
            return y
        if operation == "adjoint":
            diagonal, off_diagonal = diagonal.conj(), off_diagonal.conj()
        return diagonal.T @ x, off_diagonal.T @ x[boundary]


def join_and_multiply(key: str, worker: str, x: HostArray, pieces: list[HostArray], operation: str) -> Any:
    """Join the ghosts' entries, of which each owner has sent a piece, and multiply. Runs as a dask task.

    Dask may run this task on another worker than the rank's, because dask drops the restriction to a worker when it
    fuses tasks. Then another task computes the product on the rank's worker.
    """
    ghosts = np.concatenate(pieces) if pieces else x[:0]
    if get_worker().address == worker:
        return multiply_here(key, x, ghosts, operation)
    with worker_client() as client:
        vectors = client.scatter([x, ghosts], hash=False)
        return client.submit(
            multiply_here, key, *vectors, operation, workers=[worker], allow_other_workers=True, pure=False
        ).result()


def multiply_here(key: str, x: HostArray, ghosts: HostArray, operation: str) -> Any:
    """Multiply by the blocks of the rank with this key, which must be on this worker."""
    return multiply(find_rank(key), x, ghosts, operation)


def ghost_part(product: tuple[HostArray, HostArray], first: int, last: int) -> HostArray:
    """Return the contributions of a transposed product to the ghosts from `first` up to `last`."""
    return product[1][first:last]


def add_contributions(
    product: tuple[HostArray, HostArray], positions: list[HostArray], pieces: list[HostArray]
) -> HostArray:
    """Return this rank's part of a transposed product with the contributions of other ranks added."""
    y = product[0].copy()
    for position, piece in zip(positions, pieces, strict=True):
        y[position] += piece
    return y


def moved_part(part: HostArray) -> HostArray:
    """Return `part` unchanged. Dask has moved `part` to this worker, because it is the argument of a task here."""
    return part
