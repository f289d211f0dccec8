"""A matrix whose rows lie on the workers of a dask cluster, as its user sees it."""

from __future__ import annotations

import secrets
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import distributed
import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from gsparse.distributed import resident
from gsparse.distributed.cluster import known_workers
from gsparse.distributed.partition import RowPartition
from gsparse.distributed.products import ProductClient
from gsparse.distributed.sources import Partition, RowSource
from gsparse.errors import CommunicationError, RankLostError, ShapeError, WorkerLost
from gsparse.linalg.result import SolveResult

__all__ = ["DistributedMatrix"]

Host = npt.NDArray[Any]

TIMEOUT = 60.0
# Seconds between two looks whether all workers of a gang are there, and that other ranks have to end when one failed.
_LOOK_EVERY, _GRACE = 0.5, 3.0
_PRECONDITIONERS = ("amg", "block_jacobi", "chebyshev_polynomial", "ic0", "ilu0", "isai", "jacobi")
_CHECKPOINT_EVERY = 50


class DistributedMatrix(LinearOperator):  # type: ignore[misc]
    """A sparse matrix in blocks of rows, one a worker; made by `distribute`, `from_loaders` and `from_dask_array`.

    It is an operator for `scipy.sparse.linalg`, whose vectors are NumPy's here, and for `gsparse.linalg`, whose solvers
    then run on the workers, with vectors that stay there. Products take NumPy arrays, which give NumPy arrays, and dask
    arrays, which give dask arrays in chunks of `row_bounds`, without anything being computed yet.

    Attributes
    ----------
    shape : (int, int)
    dtype : dtype
    workers : tuple of str
        Dask's addresses, by rank.
    row_bounds : tuple of int
        Rank r owns the rows from ``row_bounds[r]`` to ``row_bounds[r + 1]``.
    permutation : array of int64 or None
        Row i of the blocks is row ``permutation[i]`` of the matrix, and so are columns. Vectors need no permuting: that
        is done on the way.
    nnz_per_worker, ghosts_per_worker : list of int
        Entries of each rank, and columns of others that it has entries in.

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
        client: distributed.Client,
        workers: Sequence[str],
        rows: RowPartition,
        columns: RowPartition,
        permutation: Host | None,
        device: str,
        timeout: float,
        options: dict[str, Any],
    ) -> None:
        self.client, self.workers, self.timeout = client, tuple(workers), timeout
        self._source = self._original = source
        self._device, self._options = device, options
        self._rows, self._columns, self.permutation = rows, columns, permutation
        self._inverse = None if permutation is None else np.argsort(permutation)
        self._key, self._secret = f"gsparse-{uuid.uuid4().hex}", secrets.token_bytes(32)
        self._epoch, self._is_connected, self._is_open = 0, False, True
        self._products: ProductClient | None = None
        self._is_reachable = True
        self._lock = threading.RLock()
        self._stays: list[resident.Stay] = []
        self._anchors: list[distributed.Future] = []
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        dtype = np.result_type(*(stay.dtype for stay in self._stays))
        super().__init__(np.dtype(dtype), (rows.num_rows, columns.num_rows))

    @classmethod
    def made(
        cls,
        source: RowSource,
        client: distributed.Client | None,
        workers: Sequence[str] | None,
        partition: Partition,
        reorder: str | None,
        device: str,
        timeout: float,
        options: dict[str, Any],
    ) -> DistributedMatrix:
        """Choose workers and bounds, and make the matrix."""
        client = client or distributed.get_client()
        known = known_workers(client)
        workers = sorted(known) if workers is None else list(workers)
        missing = [address for address in workers if address not in known]
        if missing or not workers:
            raise CommunicationError(f"the cluster has no workers {missing or 'at all'}: it has {sorted(known)}")
        workers = _started_again(client, workers)
        ordered, permutation, rows = source.ordered(partition, reorder, len(workers))
        made = cls(ordered, client, workers, rows, _columns_of(source, rows), permutation, device, timeout, options)
        made._original = source
        return made

    # ------------------------------------------------------------------ what it is

    @property
    def row_bounds(self) -> tuple[int, ...]:
        return self._rows.row_bounds

    @property
    def nnz_per_worker(self) -> list[int]:
        return [stay.nnz for stay in self._stays]

    @property
    def ghosts_per_worker(self) -> list[int]:
        return [int(stay.ghosts.size) for stay in self._stays]

    @property
    def nnz(self) -> int:
        return sum(self.nnz_per_worker)

    def __repr__(self) -> str:
        state = "" if self._is_open else ", closed"
        return f"<DistributedMatrix of shape {self.shape}, {self.nnz} entries on {len(self.workers)} workers{state}>"

    def __str__(self) -> str:
        lines = [
            repr(self),
            f"{'rank':>4} {'rows':>12} {'entries':>14} {'ghosts':>10} {'MB':>9}  format, device, worker",
        ]
        for stay, address in zip(self._stays, self.workers, strict=True):
            rows = self._rows.rows(stay.rank)
            lines.append(
                f"{stay.rank:4} {rows.stop - rows.start:12,} {stay.nnz:14,} {stay.ghosts.size:10,} "
                f"{stay.nbytes / 1e6:9.1f}  {stay.plan}, {stay.device}, {address}"
            )
        return "\n".join(lines)

    # ------------------------------------------------------------------ life

    def _submit(self, function: Callable[..., Any], name: str, rank: int, *args: Any) -> distributed.Future:
        """Give a rank's worker a task, which no other worker may take."""
        return self.client.submit(
            function,
            *args,
            key=f"gsparse-{name}-rank{rank}-{uuid.uuid4().hex}",
            workers=[self.workers[rank]],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )

    def _settled(self, parts: list[Any]) -> list[Any]:
        """Wait for what a gang is to be given: once the gang runs, workers may have no thread left to make it."""
        futures = [part for part in parts if isinstance(part, distributed.Future)]
        distributed.wait(futures)
        for future in futures:
            if future.status != "finished":
                future.result()
        return parts

    def _gang(self) -> resident.Gang:
        return resident.Gang(self._key, self._epoch, self.workers, self.timeout)

    def _addresses(self) -> tuple[tuple[str, int], ...]:
        """Have every rank open a port."""
        gang = self._gang()
        return tuple(self._wait([self._submit(resident.reserve, "reserve", r, gang, r) for r in self._ranks]))

    @property
    def _ranks(self) -> range:
        return range(len(self.workers))

    def _open(self) -> None:
        with self._alone():
            addresses, gang = self._addresses(), self._gang()
            parts = [self._source.part(self.client, w, self._rows.rows(r)) for r, w in enumerate(self.workers)]
            parts = self._settled(parts)
            shape = self._rows, self._columns, self._device, self._options
            tasks = [
                self._submit(resident.open_rank, "open", r, gang, r, addresses, self._secret, parts[r], *shape)
                for r in self._ranks
            ]
            self._stays = self._wait(tasks)
            self._anchors = tasks  # (dask keeps what they have returned, and so the ranks their matrix)
            self._is_connected = True

    def _reconnect(self) -> None:
        """Connect the ranks anew, where a gang has failed since."""
        if self._is_connected:
            return
        self._epoch += 1
        addresses, gang = self._addresses(), self._gang()
        self._wait(
            [self._submit(resident.reopen_rank, "reopen", r, gang, r, addresses, self._secret) for r in self._ranks]
        )
        self._is_connected = True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other gangs off these workers: two that interleave would wait for each other for ever.

        Dask's locks are leases, which end with their holder; its MultiLock outlives a client that dies. They are taken
        in order of address, so nobody holds one that another waits for while waiting itself.
        """
        self._check_open()
        with self._lock, self.client.as_current():
            locks = [distributed.Lock(f"gsparse-{address}") for address in sorted(set(self.workers))]
            held = []
            try:
                for lock in locks:
                    if not lock.acquire(timeout=10 * self.timeout):
                        raise CommunicationError(f"another solve holds {lock.name} for {10 * self.timeout:g} s")
                    held.append(lock)
                yield
            finally:
                for lock in held if self._has_scheduler else ():
                    with suppress(Exception):
                        lock.release()

    @property
    def _has_scheduler(self) -> bool:
        """Whether the scheduler answers: all that asks it waits half a minute for one that is gone."""
        return bool(self.client.status == "running")

    def _check_open(self) -> None:
        if not self._is_open:
            raise CommunicationError("this matrix has been closed: distribute it again")

    def _wait(
        self,
        tasks: list[distributed.Future],
        meanwhile: Callable[[], None] | None = None,
        *,
        gather: bool = True,
    ) -> list[Any]:
        """Wait for a gang; where a rank fails, end the others and raise what has gone wrong."""
        next_look = time.monotonic() + _LOOK_EVERY
        failed_at, lost = None, None
        try:
            while True:
                with suppress(TimeoutError, CancelledError):
                    distributed.wait(tasks, timeout=0.01 if meanwhile else 0.1)
                if meanwhile is not None:
                    meanwhile()
                states = [task.status for task in tasks]
                if all(state == "finished" for state in states):
                    return list(self.client.gather(tasks)) if gather else []
                failed = [state in ("error", "cancelled", "lost") for state in states]
                now = time.monotonic()
                if any(failed):
                    failed_at = failed_at or now
                    if all(state != "pending" for state in states) or now - failed_at > _GRACE:
                        raise self._error(tasks)
                if now >= next_look and lost is None:
                    next_look = now + _LOOK_EVERY
                    lost = self._lost_worker(tasks)
                if lost is not None:
                    failed_at = failed_at or now
                    others = [task for rank, task in enumerate(tasks) if rank != lost.rank]
                    if all(task.status != "pending" for task in others) or now - failed_at > _GRACE:
                        raise lost
        except BaseException:
            self._is_connected = False
            if self._has_scheduler:
                with suppress(Exception):
                    self.client.cancel(tasks, force=True)
            raise

    def _lost_worker(self, tasks: list[distributed.Future]) -> WorkerLost | None:
        """Look whether all workers that are waited for are there."""
        return self._first_lost(rank for rank in self._ranks if tasks[rank].status == "pending")

    def _first_lost(self, ranks: Iterable[int]) -> WorkerLost | None:
        """Give the first of these ranks whose worker the scheduler does not know."""
        known = self._known_workers()
        lost = (rank for rank in ranks if self.workers[rank] not in known)
        return next((WorkerLost(rank, self.workers[rank]) for rank in lost), None)

    def _error(self, tasks: list[distributed.Future]) -> Any:
        """Give what has gone wrong first: not what others have only heard of."""
        found = [task.exception(timeout=1) for task in tasks if task.status == "error"]
        for error in found:
            if not isinstance(error, CommunicationError | distributed.KilledWorker):
                return error
        found.sort(key=lambda error: isinstance(error, RankLostError))
        for error in found:
            # (a rank that ended with an error of its own has closed its connections too)
            if isinstance(error, RankLostError) and tasks[error.rank].status == "pending":
                return WorkerLost(error.rank, self.workers[error.rank])
        lost = self._first_lost(self._ranks)
        if lost is not None:
            return lost
        return found[0] if found else CommunicationError("cancelled, or the cluster has been restarted")

    def _known_workers(self) -> Any:
        """Give the workers that the scheduler knows.

        Raises
        ------
        CommunicationError
            Where there is no scheduler.
        """
        if not self._has_scheduler:
            raise CommunicationError(f"the scheduler is gone: the client is {self.client.status}")
        return known_workers(self.client)

    def repartition(
        self, partition: Partition = "nnz", *, workers: Sequence[str] | None = None, reorder: str | None = None
    ) -> DistributedMatrix:
        """Make the same matrix again on other workers, or with other bounds, from where it came; this one is closed.

        Parameters
        ----------
        partition, workers, reorder
            As in `distribute`; by default the workers that are there now.

        Returns
        -------
        DistributedMatrix
        """
        self.close()
        given = self._device, self.timeout, self._options
        return DistributedMatrix.made(self._original, self.client, workers, partition, reorder, *given)

    def checkpoint(self, folder: str | Path) -> list[str]:
        """Have each worker save its rows in a folder that all of them share, and give the files.

        ``from_loaders(files, shape)`` makes the matrix again, its rows and columns in the order of the blocks.
        """
        paths = [str(Path(folder) / f"rows-{rank:05d}.npz") for rank in self._ranks]
        self._check_open()
        return self._wait([
            self._submit(resident.save_rows, "save", rank, self._key, self.workers[rank], paths[rank])
            for rank in self._ranks
        ])  # fmt: skip

    def close(self) -> None:
        """Let go of everything on the workers. Nothing else may be called after it, but `repartition`."""
        if not self._is_open:
            return
        self._is_open = False
        if self._products is not None:
            self._products.close()
        self._release()
        self._anchors = []

    def _release(self) -> None:
        """Have the workers that are left let go: dask would wait half a minute for one that is gone."""
        with suppress(Exception):
            self.client.run(resident.release, self._key, workers=self._left(), on_error="ignore")

    def _left(self) -> list[str]:
        """Give the workers of this matrix that are still there."""
        known = self._known_workers()
        return [address for address in self.workers if address in known]

    def __enter__(self) -> DistributedMatrix:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ products

    def dot(self, x: Any) -> Any:
        """Multiply by a vector or a block of vectors, of NumPy or of dask."""
        return self._multiplied(x, "plain") if _is_dask(x) else super().dot(x)

    def __matmul__(self, x: Any) -> Any:
        return self.dot(x)

    def _matvec(self, x: Host) -> Host:
        return self._product(x.reshape(-1), "plain")

    def _rmatvec(self, x: Host) -> Host:
        return self._product(x.reshape(-1), "adjoint")

    def _matmat(self, X: Host) -> Host:
        return self._product(X, "plain")

    def _rmatmat(self, X: Host) -> Host:
        return self._product(X, "adjoint")

    def _transpose(self) -> LinearOperator:
        return _Turned(self, "transposed")

    def _adjoint(self) -> LinearOperator:
        return _Turned(self, "adjoint")

    def _product(self, x: Host, how: str) -> Host:
        """Multiply on the workers; each is sent its part and the ghosts, so that they need not talk to each other."""
        self._check_open()
        plain = how == "plain"
        x = self._permuted(x)
        cut = self._columns if plain else self._rows
        parts = [(x[cut.rows(r)], x[stay.ghosts] if plain else x[:0]) for r, stay in enumerate(self._stays)]
        found = self._multiply(how, parts)
        if plain:
            y = np.concatenate(found)
        else:
            y = np.concatenate([own for own, _ in found])
            for stay, (_, theirs) in zip(self._stays, found, strict=True):
                y[stay.ghosts] += theirs
        return self._in_order(y)  # type: ignore[no-any-return]

    def _permuted(self, x: Any) -> Any:
        """Give a vector, of NumPy or of dask, in the order of the blocks."""
        return x if self.permutation is None else x[self.permutation]

    def _in_order(self, y: Any) -> Any:
        """Give a vector of the blocks in the order of the matrix."""
        return y if self._inverse is None else y[self._inverse]

    def _multiply(self, how: str, parts: list[tuple[Host, Host]]) -> list[Any]:
        direct = self._direct()
        if direct is not None:
            try:
                return direct.multiply(how, parts)
            except CommunicationError as error:
                direct.close()
                self._products = None
                lost = self._first_lost(self._ranks)
                if lost is None:
                    raise
                raise lost from error
        return self._wait([
            self._submit(resident.multiply, "product", rank, self._key, self.workers[rank], x, ghosts, how)
            for rank, (x, ghosts) in enumerate(parts)
        ])  # fmt: skip

    def _direct(self) -> ProductClient | None:
        """Give connections to the ranks; None where they cannot be reached from here."""
        if self._products is None and self._is_reachable:
            tls = None
            if self.workers[0].startswith("tls://"):
                tls = self.client.security.get_connection_args("client")["ssl_context"]
            try:
                addresses = [stay.products for stay in self._stays]
                self._products = ProductClient(addresses, self._secret, self.timeout, tls)
            except CommunicationError as error:
                self._is_reachable = False
                warnings.warn(f"products go through the scheduler, which is slow: {error}", stacklevel=4)
        return self._products

    def _multiplied(self, x: Any, how: str) -> Any:
        """Give the product with a dask array as one, to be computed where the rows are."""
        import dask
        import dask.array as da

        plain = how == "plain"
        sources, targets = (self._columns, self._rows) if plain else (self._rows, self._columns)
        if x.ndim not in (1, 2) or x.shape[0] != sources.num_rows:
            raise ShapeError(f"dimension mismatch: {self.shape} times {x.shape}")
        chunks = self._chunks_of(x, sources)
        width = x.shape[1:]
        dtype = np.result_type(self.dtype, x.dtype)
        pieces: list[Any] = []
        found = []
        for rank, (stay, address) in enumerate(zip(self._stays, self.workers, strict=True)):
            with dask.annotate(workers=[address], allow_other_workers=False):
                if plain:
                    pieces = self._ghost_pieces(stay, chunks)
                task = dask.delayed(resident.join_and_multiply, pure=True)
                found.append(task(self._key, address, stay.products, self._secret, chunks[rank], pieces, how))
        if not plain:
            found = [self._with_contributions(found, rank) for rank in self._ranks]
        sizes = np.diff(targets.row_bounds).tolist()
        parts = [da.from_delayed(y, (n, *width), dtype=dtype) for y, n in zip(found, sizes, strict=True)]
        return self._in_order(da.concatenate(parts))

    def _with_contributions(self, found: list[Any], rank: int) -> Any:
        """Give a rank's part of a transposed product: its own, and what others have for it, rank after rank."""
        import dask

        own = self._columns.rows(rank)
        places, pieces = [], []
        for stay, product, address in zip(self._stays, found, self.workers, strict=True):
            first, last = np.searchsorted(stay.ghosts, [own.start, own.stop])
            if last > first:
                places.append(stay.ghosts[first:last] - own.start)
                with dask.annotate(workers=[address], allow_other_workers=True):
                    pieces.append(dask.delayed(resident.ghost_part, pure=True)(product, int(first), int(last)))
        with dask.annotate(workers=[self.workers[rank]], allow_other_workers=True):
            return dask.delayed(resident.add_contributions, pure=True)(found[rank], places, pieces)

    def _ghost_pieces(self, stay: resident.Stay, chunks: list[Any]) -> list[Any]:
        """Give what a rank needs of others' chunks, taken out where they are."""
        import dask

        owners = self._columns.owners(stay.ghosts)
        pieces = []
        for owner in np.unique(owners):
            numbers = stay.ghosts[owners == owner] - self._columns.row_bounds[owner]
            with dask.annotate(workers=[self.workers[owner]], allow_other_workers=True):
                pieces.append(dask.delayed(np.take, pure=True)(chunks[owner], numbers, 0))
        return pieces

    def _chunks_of(self, x: Any, cut: RowPartition) -> list[Any]:
        """Give the parts of a dask array that belong to the ranks, as delayed objects."""
        x = self._permuted(x)
        sizes = tuple(np.diff(cut.row_bounds).tolist())
        x = x.rechunk((sizes, -1) if x.ndim == 2 else (sizes,))
        return list(x.to_delayed().reshape(-1))

    # ------------------------------------------------------------------ solvers

    def __gsparse_call__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function of `gsparse.linalg` on the workers."""
        if name in _PRECONDITIONERS:
            return resident.Preconditioner(name, args, kwargs)
        return self._solve(name, *args, **kwargs)

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
            if len(args) > 1 or name in ("lsqr", "lsmr"):
                raise TypeError(f"{name} of a distributed matrix takes keyword arguments after b")
            x0 = args[0]
        if M is not None and not isinstance(M, resident.Preconditioner):
            raise TypeError(
                "M must be made of the distributed matrix: M=gsparse.linalg.jacobi(A), ilu0(A), amg(A), ..."
            )
        told = f"{self._key}-{uuid.uuid4().hex}"
        kwargs["full_output"] = full_output or name not in ("lsqr", "lsmr")
        if isinstance(x0, str):
            kwargs, x0 = {**kwargs, "x0": x0}, None
        solve = resident.Solve(
            name,
            kwargs,
            M,
            topic=told if progress else "",
            calls=f"{told}-calls" if callback is not None else "",
            checkpoint_every=checkpoint_every if on_failure == "resume" else 0,
        )
        try:
            tasks = self._run(solve, b, x0, callback)
        except CommunicationError:
            if on_failure == "raise":
                raise
            x0 = self._resumed(x0)
            tasks = self._run(solve, b, x0, callback)
        found = self._kept_there(tasks, b) if _is_dask(b) else self._brought_here(self.client.gather(tasks))
        return found if full_output or not isinstance(found, SolveResult) else (found.x, found.info)

    def _run(
        self, solve: resident.Solve, b: Any, x0: Any, callback: Callable[[Any], Any] | None
    ) -> list[distributed.Future]:
        """Solve, and give what holds each rank's `resident.Solution`."""
        parts = self._parts(b, self._rows, "b")
        vectors = {} if x0 is None else {"x0": self._parts(x0, self._columns, "x0")}
        with self._alone(), self._watching(solve):
            self._reconnect()
            gang = self._gang()
            tasks = [
                self._submit(
                    resident.run_solve, solve.name, rank, gang, rank, solve, parts[rank],
                    {name: values[rank] for name, values in vectors.items()},
                )
                for rank in self._ranks
            ]  # fmt: skip
            calls = None if callback is None else _Callbacks(self, solve.calls, callback)
            self._wait(tasks, calls, gather=False)
        return tasks

    def _parts(self, x: Any, cut: RowPartition, name: str) -> list[Any]:
        """Give the ranks' parts of a vector: arrays, or futures of a dask array's chunks."""
        x = x if _is_dask(x) else np.asarray(x)
        if x.ndim not in (1, 2) or x.shape[0] != cut.num_rows:
            raise ShapeError(f"{name} of shape {x.shape} does not fit a matrix of shape {self.shape}")
        if _is_dask(x):
            return self._settled(self.client.compute(self._chunks_of(x, cut)))
        x = self._permuted(x)
        return [x[cut.rows(rank)] for rank in self._ranks]

    def _brought_here(self, solutions: list[resident.Solution]) -> Any:
        """Put the ranks' parts together in NumPy arrays."""
        vectors = [self._joined(parts) for parts in zip(*(s.vectors for s in solutions), strict=True)]
        return solutions[0].completed(vectors)

    def _joined(self, parts: Sequence[Host]) -> Host:
        return self._in_order(np.concatenate(parts))  # type: ignore[no-any-return]

    def _kept_there(self, tasks: list[distributed.Future], b: Any) -> Any:
        """Give dask arrays of the ranks' parts, where they are."""
        import dask.array as da

        rest = self.client.submit(resident.Solution.without_vectors, tasks[0], pure=False).result()
        sizes, dtypes = np.diff(self._columns.row_bounds).tolist(), rest.dtypes
        vectors = []
        for number, dtype in enumerate(dtypes):
            parts = [self._submit(resident.Solution.vector, "x", r, task, number) for r, task in enumerate(tasks)]
            chunks = [
                da.from_delayed(part, (n, *b.shape[1:]), dtype=dtype) for part, n in zip(parts, sizes, strict=True)
            ]
            vectors.append(self._in_order(da.concatenate(chunks)))
        return rest.completed(vectors)

    @contextmanager
    def _watching(self, solve: resident.Solve) -> Iterator[None]:
        """Show a bar (tqdm) of what rank 0 tells, where that is asked for."""
        if not solve.topic:
            yield
            return
        from tqdm.auto import tqdm

        with tqdm(unit="it", desc=solve.name) as bar:

            def show(event: tuple[float, dict[str, float]]) -> None:
                bar.set_postfix_str(f"residual {event[1]['residual']:.2e}", refresh=False)
                bar.update(int(event[1]["iteration"]) - bar.n)

            self.client.subscribe_topic(solve.topic, show)
            try:
                yield
            finally:
                with suppress(Exception):
                    self.client.unsubscribe_topic(solve.topic)

    def _resumed(self, x0: Any) -> Any:
        """Make the matrix again on the workers that are left, and give what ranks have kept of x."""
        left = self._left()
        if not left:
            raise CommunicationError("no worker of this matrix is left to go on with")
        kept = self.client.run(resident.last_checkpoint, self._key, workers=left, on_error="return")
        by_rank = {self.workers.index(a): found for a, found in kept.items() if isinstance(found, tuple)}
        x = self._assembled(by_rank)
        left = _started_again(self.client, left)
        self._release()
        if self._products is not None:
            self._products.close()
        self._products, self._is_reachable = None, True
        self._key, self.workers = f"gsparse-{uuid.uuid4().hex}", tuple(left)
        self._epoch, self._is_connected = 0, False
        self._rows = self._source.partition("nnz", len(left))
        self._columns = _columns_of(self._source, self._rows)
        self._open()
        return x0 if x is None else x

    def _assembled(self, kept: dict[int, tuple[int, Host, Host]]) -> Host | None:
        """Put together the newest checkpoint of which every part is there, of its rank or of the one after it."""
        size = len(self.workers)
        for newest in sorted({found[0] for found in kept.values()}, reverse=True):
            at = {rank: found for rank, found in kept.items() if found[0] == newest}
            parts = [
                at[r][1] if r in at else at[(r + 1) % size][2] if (r + 1) % size in at else None for r in self._ranks
            ]
            if all(part is not None for part in parts):
                widths = np.diff(self._columns.row_bounds)
                found = [part for part in parts if part is not None]
                columns = next((part.size // n for part, n in zip(found, widths, strict=True) if n), 1)
                x = self._joined([part.reshape(columns, -1).T for part in found])
                return x[:, 0] if columns == 1 else x
        return None


def _columns_of(source: RowSource, rows: RowPartition) -> RowPartition:
    """Give the owners of columns: a square matrix's are its rows'."""
    num_rows, num_columns = source.shape
    return rows if num_rows == num_columns else RowPartition.by_rows(num_columns, rows.world_size)


def _started_again(client: distributed.Client, workers: Sequence[str]) -> list[str]:
    """Start workers again that NCCL has left something in, where a nanny can; give the addresses that are good now."""
    worn = [a for a, is_worn in client.run(resident.is_worn_out, workers=list(workers)).items() if is_worn]
    if not worn:
        return list(workers)
    names = {address: found["name"] for address, found in known_workers(client).items()}
    with suppress(ValueError):  # (no nanny: it has to do as it is)
        client.restart_workers(worn, raise_for_error=False)
    now = {found["name"]: a for a, found in known_workers(client).items()}
    return [now[names[address]] for address in workers if names[address] in now]


class _Turned(LinearOperator):  # type: ignore[misc]
    """The transpose or the adjoint of a distributed matrix."""

    def __init__(self, matrix: DistributedMatrix, how: str) -> None:
        super().__init__(matrix.dtype, matrix.shape[::-1])
        self._matrix, self._how = matrix, how

    def dot(self, x: Any) -> Any:
        return self._matrix._multiplied(x, self._how) if _is_dask(x) else super().dot(x)

    def __matmul__(self, x: Any) -> Any:
        return self.dot(x)

    def _matvec(self, x: Host) -> Host:
        return self._matrix._product(x.reshape(-1), self._how)

    def _matmat(self, X: Host) -> Host:
        return self._matrix._product(X, self._how)

    def _rmatvec(self, x: Host) -> Host:
        return self._matmat_of_adjoint(x.reshape(-1))

    def _rmatmat(self, X: Host) -> Host:
        return self._matmat_of_adjoint(X)

    def _matmat_of_adjoint(self, X: Host) -> Host:
        if self._how == "adjoint":
            return self._matrix._product(X, "plain")
        return self._matrix._product(X.conj(), "plain").conj()

    def _adjoint(self) -> LinearOperator:
        return self._matrix if self._how == "adjoint" else super()._adjoint()

    def _transpose(self) -> LinearOperator:
        return self._matrix if self._how == "transposed" else super()._transpose()


class _Callbacks:
    """Runs the client's callback on what the ranks send, and tells them whether to go on."""

    def __init__(self, matrix: DistributedMatrix, name: str, callback: Callable[[Any], Any]) -> None:
        self._matrix, self._callback = matrix, callback
        client, size = matrix.client, len(matrix.workers)
        self._parts = distributed.Queue(name, client=client)
        self._answers = [distributed.Queue(f"{name}-{rank}", client=client) for rank in range(size)]
        self._got: dict[int, Host] = {}

    def __call__(self) -> None:
        if self._parts.qsize():  # (a get that times out is an error in the scheduler's log)
            rank, kind, shape, data = self._parts.get()
            self._got[rank] = np.frombuffer(data, kind).reshape(shape)
        if len(self._got) < len(self._answers):
            return
        parts = [self._got[rank] for rank in range(len(self._answers))]
        self._got.clear()
        goes_on = False
        try:
            self._callback(self._matrix._joined(parts) if parts[0].ndim else float(parts[0]))
            goes_on = True
        finally:
            for queue in self._answers:
                queue.put(goes_on)


def _is_dask(x: Any) -> bool:
    return type(x).__module__.startswith("dask.")
