"""The user's distributed matrix, whose rows are stored on the workers of a dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Real
from types import TracebackType
from typing import Any

import distributed
import numpy as np
import numpy.typing as npt

from gsparse.distributed.client import solves
from gsparse.distributed.client.automatic import solve_on_workers
from gsparse.distributed.client.cluster import chosen_workers, current_client, living_workers
from gsparse.distributed.client.products import VectorLayout, WorkerProducts
from gsparse.distributed.client.rank_group import RankGroup
from gsparse.distributed.client.reductions import DistributedReductions
from gsparse.distributed.client.row_sources import ComputedRows, Partition, RowSource
from gsparse.distributed.client.solves import DistributedPreconditioner, eigenpairs_on_workers
from gsparse.distributed.ranks.partition import parse_partition
from gsparse.distributed.worker import entry_tasks
from gsparse.distributed.worker.group_tasks import RankMetadata, eliminate_zeros, split
from gsparse.distributed.worker.solve_tasks import SolveSpec, assemble, latest_copy
from gsparse.errors import CommunicationError
from gsparse.linalg.krylov.outcome import warn_unless_converged
from gsparse.linalg.registry import METHODS
from gsparse.linalg.result import SolveResult

HostArray = npt.NDArray[Any]

TIMEOUT = 60.0
_CHECKPOINT_EVERY = 50
# Arguments of solvers that exist only for a distributed matrix.
_DISTRIBUTED_OPTIONS = ("on_failure", "checkpoint_every")


class DistributedMatrix(DistributedReductions):
    """A sparse matrix in blocks of rows, one block for each worker of a dask cluster.

    `distribute`, `from_loaders` and `from_dask` make it. It is a linear operator for `scipy.sparse.linalg`, whose
    vectors then are NumPy arrays of this process. The solvers of `gsparse.linalg` run on the workers, and their vectors
    stay there. The product with a NumPy array is a NumPy array. The product with a dask array is a dask array in chunks
    of `row_bounds`, which is not computed yet.

    ``A @ B``, the element-wise operations of SciPy's sparse arrays (``A + B``, ``2 * A``, ``A.multiply(x)``, ``A > 0``,
    ``np.sqrt(A)``), selections (``A[rows]``, ``A[:, columns]``), `gsparse.sparse.vstack` and `hstack`, and `with_data`
    return distributed matrices. The workers keep each of them until it is closed, or nothing refers to it any more. A
    and B must be on the same workers, and for element-wise operations their row bounds must be the same. ``A.T @ x``
    and ``A.H @ x`` need no transpose. All other operations on ``A.T`` and ``A.H`` compute the transpose first, as
    ``A.T.tomatrix()`` does. A result does not depend on its operands, so these may be closed. The rows of a result
    exist only on its workers: if a worker is lost, the result must be computed again.

    Attributes
    ----------
    shape : (int, int)
    dtype : dtype
        The common dtype of the values of all workers.

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
        layout: VectorLayout,
        device: str | None,
        timeout: float,
        options: dict[str, Any],
    ) -> None:
        self.client, self.timeout = client, timeout
        # `_source` has the rows in the order of the blocks, and `_original` has them in their original order.
        self._source, self._original = source, original
        self._device, self._options = device, options
        self._open(workers, layout)
        super().__init__(np.dtype(self._rank_metadata[0].dtype), layout.shape)

    @classmethod
    def create(
        cls,
        source: RowSource,
        client: distributed.Client | None,
        workers: Sequence[str] | int | None,
        partition: Partition,
        reorder: str | None,
        device: str | None,
        timeout: float,
        options: dict[str, Any],
    ) -> DistributedMatrix:
        """Check the arguments, choose the workers and the row bounds, and make the matrix."""
        partition = parse_partition(reorder, partition)
        if not (isinstance(timeout, Real) and 0 < timeout < np.inf):
            raise ValueError(f"timeout must be a number of seconds above 0, got {timeout!r}")
        client = current_client(client)
        living = living_workers(client, lambda: chosen_workers(client, workers), timeout)
        arranged, permutation, rows = source.arrange(partition, reorder, len(living))
        layout = VectorLayout.of(rows, source.shape[1], permutation)
        return cls(arranged, source, client, living, layout, device, timeout, options)

    # ------------------------------------------------------------------ attributes

    @property
    def workers(self) -> tuple[str, ...]:
        """Dask's addresses of the workers, in the order of the ranks."""
        return self._rank_group.workers

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices of the ranks, such as "gpu:0"."""
        return tuple(metadata.device for metadata in self._rank_metadata)

    @property
    def permutation(self) -> HostArray | None:
        """The order of rows and columns in the blocks; None if they were not permuted.

        Row i of the blocks is row ``permutation[i]`` of the matrix, and the same holds for the columns. Vectors are
        permuted by the products and the solvers, not by the user.
        """
        return self._layout.permutation

    @property
    def row_bounds(self) -> tuple[int, ...]:
        """Bounds of the row blocks: rank r owns the rows from ``row_bounds[r]`` up to ``row_bounds[r + 1]``."""
        return self._layout.rows.row_bounds

    @property
    def nnz_per_worker(self) -> list[int]:
        """Number of entries of each rank."""
        return [metadata.nnz for metadata in self._rank_metadata]

    @property
    def ghosts_per_worker(self) -> list[int]:
        """Number of ghosts of each rank: columns that other ranks own and in which this rank has entries."""
        return [len(ghosts) for ghosts in self._worker_products.ghosts]

    @property
    def nnz(self) -> int:
        """Number of entries of all ranks together."""
        return sum(self.nnz_per_worker)

    def __repr__(self) -> str:
        state = "" if self._rank_group.is_open else ", closed"
        return f"<DistributedMatrix of shape {self.shape}, {self.nnz} entries on {len(self.workers)} workers{state}>"

    def __str__(self) -> str:
        lines = [
            repr(self),
            f"{'rank':>4} {'rows':>12} {'entries':>14} {'ghosts':>10} {'MB':>9}  format, device, worker",
        ]
        if not self._rank_group.is_open:
            return lines[0]
        ghosts = self.ghosts_per_worker
        described = self._rank_group.call(entry_tasks.description)
        of_ranks = zip(self._rank_metadata, ghosts, described, self.workers, strict=True)
        for rank, (metadata, num_ghosts, (moved, plan), address) in enumerate(of_ranks):
            rows = self._layout.rows.rows(rank)
            lines.append(
                f"{rank:4} {rows.stop - rows.start:12,} {metadata.nnz:14,} {num_ghosts:10,} {moved / 1e6:9.1f}  "
                f"{plan}, {metadata.device}, {address}"
            )
        return "\n".join(lines)

    # ------------------------------------------------------------------ opening, saving and closing

    def _open(self, workers: Sequence[str], layout: VectorLayout) -> None:
        """Connect the ranks on these workers, and let each rank make its own rows."""
        rank_group = RankGroup(self.client, workers, self.timeout, self._source.operand)
        if self._source.remedy:
            rank_group.remedy, rank_group.closed_by = self._source.remedy, f"closed: {self._source.remedy}"
        try:
            self._rank_metadata = rank_group.open(
                lambda rank: self._source.rank_input(self.client, workers[rank], layout.rows.rows(rank)),
                self._device, layout.rows, layout.columns, self._options,
            )  # fmt: skip
        except BaseException:
            rank_group.close()
            raise
        self._rank_group, self._layout = rank_group, layout
        self._preconditioner_epochs: dict[str, int] = {}
        self._source.attach(rank_group, layout)
        self._describe(self._rank_metadata)

    def _describe(self, rank_metadata: list[RankMetadata]) -> None:
        """Store the metadata of all ranks."""
        self._rank_metadata, self._value_order = rank_metadata, None
        self._made_products: WorkerProducts | None = None

    @property
    def _worker_products(self) -> WorkerProducts:
        """The products with vectors. The ranks split their rows when this is first used."""
        group, made = self._rank_group, self._made_products
        if made is None:
            with group.exclusive(may_be_nested=True):
                group.reconnect()
                ghosts = group.call_together(split)
            made = self._made_products = WorkerProducts(group, self._layout, ghosts, self.dtype)
        return made

    def eliminate_zeros(self) -> None:
        """Remove stored zeros from this matrix.

        After `repartition`, a matrix that was not computed from other matrices has its stored zeros again.

        Raises
        ------
        CommunicationError, WorkerLostError
        """
        with self._rank_group.exclusive():
            self._describe(self._rank_group.call(eliminate_zeros))

    def repartition(
        self, partition: Partition = "nnz", *, workers: Sequence[str] | int | None = None, reorder: str | None = None
    ) -> DistributedMatrix:
        """Make the same matrix again from its source, on other workers or with other row bounds, and close this one.

        If this matrix was computed from other matrices, its rows are copied from its workers, so it must still be open.

        Parameters
        ----------
        partition : {"nnz", "rows", "metis"} or sequence of int, optional
            As for `distribute`.
        workers : sequence of str, or int, optional
            Dask's addresses of the workers, or their number; by default all current workers of the cluster.
        reorder : {"rcm"}, optional
            As for `distribute`.

        Returns
        -------
        DistributedMatrix
            The new matrix, which replaces this one: ``A = A.repartition()``.

        Raises
        ------
        ValueError, ShapeError, CommunicationError, WorkerLostError
        """
        partition = parse_partition(reorder, partition)
        chosen_workers(self.client, workers)  # raises errors of arguments before the matrix is closed
        if self._original.is_lasting:  # first, so that the workers do not need memory for both matrices
            self.close()
        settings = self._device, self.timeout, self._options
        matrix = DistributedMatrix.create(self._original, self.client, workers, partition, reorder, *settings)
        self.close()
        self._rank_group.closed_by = "closed by repartition(): use the matrix that it returned"
        return matrix

    def _computed(self, source: ComputedRows, layout: VectorLayout, keeps_options: bool) -> DistributedMatrix:
        # With other values, the matrix need not be symmetric.
        options = {k: v for k, v in self._options.items() if k != "symmetric"} if keeps_options else {}
        settings = self._device, self.timeout, options
        return DistributedMatrix(source, source, self.client, self.workers, layout, *settings)

    def close(self) -> None:
        """Release the matrix. Afterwards, only `repartition` may be called, if the rows can be read again."""
        if self._rank_group.is_open:
            self._rank_group.close()

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
        """Run a function of `gsparse.linalg` on the workers. Return NotImplemented if it has to run in this process."""
        if name in ("norm", "solve"):
            return self.norm(**kwargs) if name == "norm" else solve_on_workers(self, *args, **kwargs)
        arguments = _bind_arguments(name, args, kwargs)
        kind = METHODS[name].kind
        if kind == "preconditioner":
            return DistributedPreconditioner(self, name, self._with_block_size(arguments))
        if kind == "eigensolver":
            return eigenpairs_on_workers(self, name, arguments)
        return self._solve(name, *args, **kwargs)

    def _own_preconditioner(self, M: Any) -> DistributedPreconditioner | None:
        """Return M if it is a preconditioner of this matrix, else None."""
        return M if isinstance(M, DistributedPreconditioner) and M.matrix is self else None

    def _with_block_size(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments. If `block_size` is None, replace it by the block size of the source matrix."""
        if arguments.get("block_size", 1) is None and self._source.block_size > 1:
            return {**arguments, "block_size": self._source.block_size}
        return arguments

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
        preconditioner = self._own_preconditioner(M)
        if M is not None and preconditioner is None:
            raise TypeError(
                "M must be made of the distributed matrix that is solved with: M=gsparse.linalg.jacobi(A), ilu0(A), "
                f"amg(A), ..., got {M!r}; SciPy's solvers take any operator"
            )
        kwargs["full_output"] = True
        if isinstance(x0, str):
            kwargs, x0 = {**kwargs, "x0": x0}, None
        solve = SolveSpec(
            name,
            kwargs,
            reports_progress=progress,
            has_callback=callback is not None,
            checkpoint_every=checkpoint_every if on_failure == "resume" else 0,
        )
        for is_last_attempt in (on_failure == "raise", True):
            try:
                result: SolveResult = solves.run(self, solve, b, {"x0": x0}, callback, preconditioner)
                break
            except CommunicationError:
                if is_last_attempt:
                    raise
                x0 = self._reopen(solve, x0)
        if full_output:
            return result
        warn_unless_converged(result)
        return result.in_scipys_form()

    def _reopen(self, solve: SolveSpec, x0: Any) -> Any:
        """Make the matrix again on the remaining workers if necessary. Return x of the latest checkpoint, or x0."""
        rank_group, layout = self._rank_group, self._layout
        lost = rank_group.error_of_lost_worker()
        if lost is not None and not self._source.is_lasting:
            raise lost
        answers = rank_group.ask_remaining(latest_copy, solve.key)
        copies = {rank: copy for rank, copy in answers.items() if copy is not None}
        parts = assemble(copies, np.diff(layout.columns.row_bounds).tolist())
        if self._source.is_lasting:
            workers = living_workers(self.client, rank_group.remaining_workers, rank_group.timeout)
            self.close()
            rows = self._source.partition("nnz", len(workers))
            self._open(workers, VectorLayout.of(rows, layout.columns.num_rows, layout.permutation))
        return x0 if parts is None else layout.join(parts)


def _bind_arguments(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a dict from each parameter of a function of `gsparse.linalg`, except A, to its value or default.

    Raise TypeError for arguments that the function does not accept, before anything is sent to the ranks.
    """
    method = METHODS[name]
    extra = _DISTRIBUTED_OPTIONS if method.kind == "solver" else ()
    try:
        bound = method.signature.bind(None, *args, **{key: kwargs[key] for key in kwargs if key not in extra})
    except TypeError as error:
        raise TypeError(f"{name}() {error}") from None
    bound.apply_defaults()
    return {key: value for key, value in bound.arguments.items() if key != "A"}
