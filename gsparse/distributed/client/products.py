"""Products of a distributed matrix with vectors of its user: NumPy's over direct sockets, dask's as a graph."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.distributed.client.task_group import Gang
from gsparse.distributed.client.vector_layout import Layout
from gsparse.distributed.ranks.product_connections import ProductClient
from gsparse.distributed.worker import product_tasks
from gsparse.distributed.worker.group_tasks import Stay
from gsparse.errors import CommunicationError

__all__ = ["Multiplier"]

Host = npt.NDArray[Any]


class Multiplier:
    """Multiplies on the workers; each is sent its part and the ghosts, so that they need not talk to each other.

    Parameters
    ----------
    gang : Gang
    layout : Layout
    stays : list of Stay
        By rank.
    dtype : dtype
        Of the matrix.
    """

    def __init__(self, gang: Gang, layout: Layout, stays: list[Stay], dtype: np.dtype[Any]) -> None:
        self._gang, self._layout, self._stays, self.dtype = gang, layout, stays, dtype
        self._direct: ProductClient | None = None
        self._is_reachable = True

    def close(self) -> None:
        if self._direct is not None:
            self._direct.close()

    # ------------------------------------------------------------------ NumPy

    def host(self, x: Host, how: str) -> Host:
        """Multiply an array of this process: "plain", "transposed" or "adjoint"."""
        self._gang.check_open()
        layout, plain = self._layout, how == "plain"
        x = layout.permuted(x)
        cut = layout.columns if plain else layout.rows
        found = self._multiply(
            how, [(x[cut.rows(r)], x[stay.ghosts] if plain else x[:0]) for r, stay in enumerate(self._stays)]
        )
        if plain:
            return layout.joined(found)
        y = np.concatenate([own for own, _ in found])
        for stay, (_, theirs) in zip(self._stays, found, strict=True):
            y[stay.ghosts] += theirs
        return layout.in_order(y)  # type: ignore[no-any-return]

    def _multiply(self, how: str, parts: list[tuple[Host, Host]]) -> list[Any]:
        gang, direct = self._gang, self._connected()
        if direct is None:
            tasks = [
                gang.submit(product_tasks.multiply, "product", rank, gang.key, gang.workers[rank], x, ghosts, how)
                for rank, (x, ghosts) in enumerate(parts)
            ]
            return gang.wait(tasks)
        try:
            return direct.multiply(how, parts)
        except CommunicationError as error:
            lost = gang.first_lost()
            if lost is None:
                raise
            raise lost from error

    def _connected(self) -> ProductClient | None:
        """Give connections to the ranks; None where they cannot be reached from here."""
        if self._direct is None and self._is_reachable:
            gang, tls = self._gang, None
            if gang.workers[0].startswith("tls://"):
                tls = gang.client.security.get_connection_args("client")["ssl_context"]
            try:
                self._direct = ProductClient([stay.products for stay in self._stays], gang.secret, gang.timeout, tls)
            except CommunicationError as error:
                self._is_reachable = False
                warnings.warn(f"products go through the scheduler, which is slow: {error}", stacklevel=4)
        return self._direct

    # ------------------------------------------------------------------ dask

    def lazy(self, x: Any, how: str) -> Any:
        """Give the product with a dask array as one, to be computed where the rows are."""
        import dask

        layout, gang, plain = self._layout, self._gang, how == "plain"
        sources, targets = (layout.columns, layout.rows) if plain else (layout.rows, layout.columns)
        chunks = layout.chunks(x, sources)
        pieces: list[Any] = []
        found = []
        for rank, (stay, address) in enumerate(zip(self._stays, gang.workers, strict=True)):
            with dask.annotate(workers=[address], allow_other_workers=False):
                if plain:
                    pieces = self._ghost_pieces(stay, chunks)
                task = dask.delayed(product_tasks.join_and_multiply, pure=True)
                found.append(task(gang.key, address, stay.products, chunks[rank], pieces, how))
        if not plain:
            found = [self._with_contributions(found, rank) for rank in gang.ranks]
        return layout.dask_array(found, targets, x.shape[1:], np.result_type(self.dtype, x.dtype))

    def _with_contributions(self, found: list[Any], rank: int) -> Any:
        """Give a rank's part of a transposed product: its own, and what others have for it, rank after rank."""
        import dask

        workers, own = self._gang.workers, self._layout.columns.rows(rank)
        places, pieces = [], []
        for stay, product, address in zip(self._stays, found, workers, strict=True):
            first, last = np.searchsorted(stay.ghosts, [own.start, own.stop])
            if last > first:
                places.append(stay.ghosts[first:last] - own.start)
                with dask.annotate(workers=[address], allow_other_workers=True):
                    part = dask.delayed(product_tasks.ghost_part, pure=True)
                    pieces.append(part(product, int(first), int(last)))
        with dask.annotate(workers=[workers[rank]], allow_other_workers=True):
            return dask.delayed(product_tasks.add_contributions, pure=True)(found[rank], places, pieces)

    def _ghost_pieces(self, stay: Stay, chunks: list[Any]) -> list[Any]:
        """Give what a rank needs of others' chunks, taken out where they are."""
        import dask

        columns = self._layout.columns
        owners = columns.owners(stay.ghosts)
        pieces = []
        for owner in np.unique(owners):
            numbers = stay.ghosts[owners == owner] - columns.row_bounds[owner]
            with dask.annotate(workers=[self._gang.workers[owner]], allow_other_workers=True):
                pieces.append(dask.delayed(np.take, pure=True)(chunks[owner], numbers, 0))
        return pieces
