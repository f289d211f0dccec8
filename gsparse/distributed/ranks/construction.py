"""A matrix from the rows of several processes that another program has started."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.gpu import GpuDevice, gpu_device
from gsparse.device.select import default_device_name, get_device
from gsparse.distributed.ranks.communicator import Communicator
from gsparse.distributed.ranks.gpu_memory import connect_gpus
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.ranks.rank_matrix import RankMatrix
from gsparse.errors import ShapeError
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix


def matrix_from_own_rows(
    communicator: Communicator,
    local_rank: int,
    rows: Any,
    own_columns: int | None,
    device: str | Device | None,
    options: dict[str, Any],
) -> RankMatrix:
    """Make a matrix from `rows`, which has this rank's block of consecutive rows. All ranks must call this together.

    If an argument of one rank is wrong, this rank raises an error, and the other ranks raise `CommunicationError` with
    the same message. The communicator is then closed.
    """
    try:
        if not sp.issparse(rows) or rows.ndim != 2:
            raise TypeError(f"rows must be a sparse array with two dimensions, got {type(rows).__name__}")
        if own_columns is not None and index(own_columns) < 0:
            raise ShapeError(f"own_columns must not be negative, got {own_columns}")
        block = rows if isinstance(rows, DeviceMatrix) else sp.csr_array(rows)
        rank_device = _chosen_device(device, communicator, local_rank)
        row = (*block.shape, -1 if own_columns is None else index(own_columns))
        # One row per rank: its numbers of rows, columns and own columns, and whether it has a GPU.
        table = communicator.table(np.array([*row, isinstance(rank_device, GpuDevice)], np.int64))
        row_partition, column_partition = _partitions(table)
        with rank_device.active():
            if table[:, 3].all() and communicator.world_size > 1:
                communicator = connect_gpus(communicator, rank_device)
            return RankMatrix(block, row_partition, column_partition, communicator, rank_device, **options)
    except BaseException as error:
        communicator.abort(f"rank {communicator.rank}: {type(error).__name__}: {error}")
        communicator.close()
        raise


def _chosen_device(device: str | Device | None, communicator: Communicator, local_rank: int) -> Device:
    """Return the device of a rank.

    Unless `device` names a GPU by its number, rank r of the ranks of a host uses GPU r, modulo the number of GPUs.
    """
    device = default_device_name() if device is None else device
    chosen = get_device(device)
    names_one = isinstance(device, Device) or ":" in str(device)
    if not names_one and isinstance(chosen, GpuDevice) and communicator.world_size > 1:  # on GPUs only
        return gpu_device(local_rank % chosen.xp.cuda.runtime.getDeviceCount())
    return chosen


def _partitions(table: npt.NDArray[np.int64]) -> tuple[RowPartition, RowPartition]:
    """Return the owners of rows and columns.

    `table` has a row per rank: its numbers of rows, of all columns, and of its own columns (-1 for the default).
    """
    num_rows, num_columns, own_columns = table[:, 0], table[:, 1], table[:, 2]
    others = np.flatnonzero(num_columns != num_columns[0])
    if others.size:
        text = f"rank 0 has {num_columns[0]}, rank {others[0]} has {num_columns[others[0]]}"
        raise ShapeError(f"the rows of all ranks must have the same number of columns: {text}")
    rows, total = RowPartition((0, *np.cumsum(num_rows).tolist())), int(num_columns[0])
    if (own_columns >= 0).all():
        columns = RowPartition((0, *np.cumsum(own_columns).tolist()))
        if columns.num_rows != total:
            text = f"{own_columns.tolist()} add up to {columns.num_rows}, the rows have {total} columns"
            raise ShapeError(f"own_columns of all ranks must add up to the number of columns: {text}")
        return rows, columns
    if (own_columns >= 0).any():
        missing = np.flatnonzero(own_columns < 0).tolist()
        raise ShapeError(f"all ranks or none must pass own_columns: ranks {missing} do not")
    return rows, rows if rows.num_rows == total else RowPartition.by_rows(total, len(table))
