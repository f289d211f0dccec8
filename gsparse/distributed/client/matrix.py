"""A matrix whose rows lie on the workers of a dask cluster, as its user sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any

import distributed
import numpy as np
import numpy.typing as npt

from gsparse.distributed.client import solves
from gsparse.distributed.client.checkpoints import write_checkpoint
from gsparse.distributed.client.cluster import chosen_workers, current_client
from gsparse.distributed.client.eigenpairs import lobpcg_on_workers
from gsparse.distributed.client.operators import Products
from gsparse.distributed.client.preconditioners import DistributedPreconditioner
from gsparse.distributed.client.products import Multiplier
from gsparse.distributed.client.row_sources import Partition, RowSource
from gsparse.distributed.client.task_group import Gang, started_again
from gsparse.distributed.client.vector_layout import Layout
from gsparse.distributed.io.readers import FIRST_ROW, PERMUTATION
from gsparse.distributed.ranks.ordering import parsed_partition
from gsparse.distributed.worker import solution_copies as checkpoints
from gsparse.distributed.worker.solve_tasks import Preconditioner, Solve
from gsparse.errors import CommunicationError
from gsparse.linalg.registry import METHODS
from gsparse.linalg.result import SolveResult

__all__ = ["TIMEOUT", "DistributedMatrix"]

Host = npt.NDArray[Any]

TIMEOUT = 60.0
_CHECKPOINT_EVERY = 50
# What solvers of a distributed matrix take beside their own arguments.
_OWN_OPTIONS = ("on_failure", "checkpoint_every")


class DistributedMatrix(Products):
    """A sparse matrix in blocks of rows, one a worker; made by `distribute`, `from_loaders` and `from_dask_array`.

    It is an operator for `scipy.sparse.linalg`, whose vectors are NumPy's here, and for `gsparse.linalg`, whose solvers
    then run on the workers, with vectors that stay there. Products take NumPy arrays, which give NumPy arrays, and dask
    arrays, which give dask arrays in chunks of `row_bounds`, without anything being computed yet.

    Attributes
    ----------
    shape : (int, int)
    dtype : dtype

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from distributed import Client
    >>> from gsparse.distributed import LocalGpuCluster, distribute
    >>> from gsparse.linalg import cg
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(50, 50)).tocsr()
    >>> with LocalGpuCluster(2, device="cpu") as cluster, Client(cluster) as client:  # doctest: +SKIP
    ...     with distribute(S, client=client) as A:
    ...         x, info = cg(A, numpy.ones(50), rtol=1e-10)
    """

    def __init__(
        self,
        source: RowSource,
        original: RowSource,
        client: distributed.Client,
        workers: Sequence[str],
        layout: Layout,
        device: str,
        timeout: float,
        options: dict[str, Any],
    ) -> None:
        self.client, self.timeout = client, timeout
        self._source, self._original = source, original
        self._device, self._options = device, options
        self._open(workers, layout)
        super().__init__(self._multiplier.dtype, layout.shape)

    @classmethod
    def made(
        cls,
        source: RowSource,
        client: distributed.Client | None,
        workers: Sequence[str] | int | None,
        partition: Partition,
        reorder: str | None,
        device: str,
        timeout: float,
        options: dict[str, Any],
    ) -> DistributedMatrix:
        """Check what is asked for, choose workers and bounds, and make the matrix."""
        partition = parsed_partition(reorder, partition)
        if not (isinstance(timeout, Real) and 0 < timeout < np.inf):
            raise ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}")
        client = current_client(client)
        workers = chosen_workers(client, workers)
        workers = started_again(client, workers)
        ordered, permutation, rows = source.ordered(partition, reorder, len(workers))
        layout = Layout.of(rows, source.shape[1], permutation)
        return cls(ordered, source, client, workers, layout, device, timeout, options)

    # ------------------------------------------------------------------ what it is

    @property
    def workers(self) -> tuple[str, ...]:
        """Dask's addresses, by rank."""
        return self._gang.workers

    @property
    def permutation(self) -> Host | None:
        """Which row of the matrix each row of the blocks is, and column too; None where none was moved.

        Vectors need no permuting: that is done on the way.
        """
        return self._layout.permutation

    @property
    def row_bounds(self) -> tuple[int, ...]:
        """Rank r owns the rows from ``row_bounds[r]`` to ``row_bounds[r + 1]``."""
        return self._layout.rows.row_bounds

    @property
    def nnz_per_worker(self) -> list[int]:
        """Entries of each rank."""
        return [stay.nnz for stay in self._stays]

    @property
    def ghosts_per_worker(self) -> list[int]:
        """Columns of other ranks that each rank has entries in."""
        return [int(stay.ghosts.size) for stay in self._stays]

    @property
    def nnz(self) -> int:
        """Entries of all ranks."""
        return sum(self.nnz_per_worker)

    def __repr__(self) -> str:
        state = "" if self._gang.is_open else ", closed"
        return f"<DistributedMatrix of shape {self.shape}, {self.nnz} entries on {len(self.workers)} workers{state}>"

    def __str__(self) -> str:
        lines = [
            repr(self),
            f"{'rank':>4} {'rows':>12} {'entries':>14} {'ghosts':>10} {'MB':>9}  format, device, worker",
        ]
        for stay, address in zip(self._stays, self.workers, strict=True):
            rows = self._layout.rows.rows(stay.rank)
            lines.append(
                f"{stay.rank:4} {rows.stop - rows.start:12,} {stay.nnz:14,} {stay.ghosts.size:10,} "
                f"{stay.nbytes / 1e6:9.1f}  {stay.plan}, {stay.device}, {address}"
            )
        return "\n".join(lines)

    # ------------------------------------------------------------------ life

    def _open(self, workers: Sequence[str], layout: Layout) -> None:
        """Have these workers make the matrix."""
        gang = Gang(self.client, workers, self.timeout)
        try:
            self._stays = gang.open(
                lambda: [self._source.part(self.client, w, layout.rows.rows(r)) for r, w in enumerate(workers)],
                layout.rows, layout.columns, self._device, self._options,
            )  # fmt: skip
        except BaseException:
            gang.close()
            raise
        dtype = np.dtype(np.result_type(*(stay.dtype for stay in self._stays)))
        self._gang, self._layout = gang, layout
        self._multiplier = Multiplier(gang, layout, self._stays, dtype)

    def repartition(
        self, partition: Partition = "nnz", *, workers: Sequence[str] | int | None = None, reorder: str | None = None
    ) -> DistributedMatrix:
        """Make the same matrix again on other workers, or with other bounds, from where it came; this one is closed.

        Parameters
        ----------
        partition : {"nnz", "rows", "metis"} or sequence of int, optional
            As for `distribute`.
        workers : sequence of str, or int, optional
            Dask's addresses, or how many; by default the workers that are there now.
        reorder : {"rcm"}, optional
            As for `distribute`.

        Returns
        -------
        DistributedMatrix
            A new one, to go on with: ``A = A.repartition()``.

        Raises
        ------
        ValueError, ShapeError, CommunicationError, WorkerLost
        """
        partition, workers = parsed_partition(reorder, partition), chosen_workers(self.client, workers)
        self.close()
        given = self._device, self.timeout, self._options
        again = DistributedMatrix.made(self._original, self.client, workers, partition, reorder, *given)
        self._gang.closed_by = "closed by repartition(): use the matrix that it returned"
        return again

    def checkpoint(self, folder: str | Path) -> list[str]:
        """Have each worker save its rows in a folder that all of them share.

        A checkpoint in the same folder is replaced as a whole: where this one fails, or a worker or this process ends
        while it is written, `from_loaders` reads either all of the older one or all of the newer one. Only one matrix
        may be saved in a folder at a time.

        ``from_loaders(files, shape)`` makes the matrix again. Where `permutation` is not None, rows and columns are
        saved in the order of the blocks, and `permutation` beside them, by which `from_loaders` finds back; who else
        reads them has ``S[permutation][:, permutation]``.

        Parameters
        ----------
        folder : path-like
            That each worker can write to by this name; it is made where there is none.

        Returns
        -------
        list of str
            The files, by rank, in SciPy's ``.npz``; each with its part of `permutation` as one more array of that name.

        Raises
        ------
        CommunicationError, WorkerLost
        OSError
            Where a worker cannot write there, or the disk is full.
        """
        self._gang.check_open()
        return write_checkpoint(self._gang, Path(folder), [self._moved(rank) for rank in self._gang.ranks])

    def _moved(self, rank: int) -> dict[str, Host]:
        """Give what a rank's checkpoint is to hold beside its rows, where they were moved."""
        if self.permutation is None:
            return {}
        own = self._layout.rows.rows(rank)
        return {FIRST_ROW: np.array([own.start]), PERMUTATION: self.permutation[own]}

    def close(self) -> None:
        """Let go of everything on the workers. Nothing else may be called after it, but `repartition`."""
        if self._gang.is_open:
            self._multiplier.close()
            self._gang.close()

    def __reduce__(self) -> Any:
        raise TypeError("a distributed matrix lives with its client and is not pickled: checkpoint(folder) saves it")

    def __enter__(self) -> DistributedMatrix:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ solvers

    def __gsparse_call__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function of `gsparse.linalg` on the workers."""
        given = _arguments(name, args, kwargs)
        kind = METHODS[name].kind
        if kind == "preconditioner":
            return DistributedPreconditioner(self, Preconditioner(name, args, kwargs))
        if kind == "eigensolver":
            return lobpcg_on_workers(self._gang, self._layout, self._recipe(given["M"]), given)
        return self._solve(name, *args, **kwargs)

    def _recipe(self, M: Any) -> Preconditioner | None:
        """Give what ranks make a preconditioner by; None where it is not one of this matrix."""
        return M.recipe if isinstance(M, DistributedPreconditioner) and M.matrix is self else None

    def _solve(
        self,
        name: str,
        b: Any,
        *args: Any,
        x0: Any = None,
        M: Any = None,
        callback: Callable[[Any], Any] | None = None,
        progress: bool = False,
        full_output: bool = False,
        on_failure: str = "raise",
        checkpoint_every: int = _CHECKPOINT_EVERY,
        **kwargs: Any,
    ) -> Any:
        if on_failure not in ("raise", "resume"):
            raise ValueError(f"on_failure must be 'raise' or 'resume', got {on_failure!r}")
        if args:
            if METHODS[name].least_squares:
                raise TypeError(f"{name} of a distributed matrix takes keyword arguments after b")
            (x0,) = args
        recipe = self._recipe(M)
        if M is not None and recipe is None:
            raise TypeError(
                "M must be made of the distributed matrix that is solved with: M=gsparse.linalg.jacobi(A), ilu0(A), "
                f"amg(A), ..., got {M!r}; SciPy's solvers take any operator"
            )
        kwargs["full_output"] = full_output or not METHODS[name].least_squares
        if isinstance(x0, str):
            kwargs, x0 = {**kwargs, "x0": x0}, None
        solve = Solve(
            name,
            kwargs,
            recipe,
            reports=progress,
            calls=callback is not None,
            checkpoint_every=checkpoint_every if on_failure == "resume" else 0,
        )
        try:
            tasks = solves.run(self._gang, self._layout, solve, b, {"x0": x0}, callback)
        except CommunicationError:
            if on_failure == "raise":
                raise
            x0 = self._resumed(x0)
            tasks = solves.run(self._gang, self._layout, solve, b, {"x0": x0}, callback)
        found = solves.delivered(self._gang, self._layout, tasks, b)
        return found if full_output or not isinstance(found, SolveResult) else (found.x, found.info)

    def _resumed(self, x0: Any) -> Any:
        """Make the matrix again on the workers that are left, and give what ranks have kept of x."""
        gang, layout = self._gang, self._layout
        left = gang.left()
        if not left:
            raise CommunicationError("no worker of this matrix is left to go on with")
        found = self.client.run(checkpoints.last, gang.key, workers=left, on_error="return")
        kept = {self.workers.index(a): checkpoint for a, checkpoint in found.items() if isinstance(checkpoint, tuple)}
        parts = checkpoints.assembled(kept, np.diff(layout.columns.row_bounds).tolist())
        left = started_again(self.client, left)
        self.close()
        rows = self._source.partition("nnz", len(left))
        self._open(left, Layout.of(rows, layout.columns.num_rows, layout.permutation))
        return x0 if parts is None else layout.joined(parts)


def _arguments(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Give what a function of `gsparse.linalg` is given beside A; raise where it takes no such, before ranks do."""
    method = METHODS[name]
    own = () if method.kind == "preconditioner" else _OWN_OPTIONS
    try:
        given = method.signature.bind(None, *args, **{key: kwargs[key] for key in kwargs if key not in own})
    except TypeError as error:
        raise TypeError(f"{name}() {error}") from None
    given.apply_defaults()
    return {key: value for key, value in given.arguments.items() if key != "A"}
