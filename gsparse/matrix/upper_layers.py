"""Methods of the matrix that upper layers serve: `distribute`, `accelerated`, and the notebook's table.

The matrix imports none of these layers. The public interface (`gsparse/__init__.py`), which stands above all of them,
enters a function for each name when the package is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from scipy.sparse.linalg import LinearOperator

from gsparse.matrix.matrix_like import MatrixLike

UPPER_LAYERS: dict[str, Callable[..., Any]] = {}


class UpperLayers(MatrixLike):
    """Methods that upper layers serve."""

    def distribute(self, client: Any = None, **options: Any) -> Any:
        """Spread this matrix over the workers of a dask cluster.

        Parameters
        ----------
        client : distributed.Client, optional
            The client of the cluster; by default dask's current client.
        **options
            Of `gsparse.distributed.distribute`.

        Returns
        -------
        gsparse.distributed.DistributedMatrix
            A block of rows for each worker.
        """
        return UPPER_LAYERS["distribute"](self, client, **options)

    def accelerated(
        self,
        method: str | Callable[..., Any] = "auto",
        M: Any = None,
        rtol: float | None = None,
        **options: Any,
    ) -> LinearOperator:
        """Return an operator with which SciPy's own solvers run, unmodified, at the speed of the device.

        Parameters
        ----------
        method : {"auto", "cg", "minres", "bicgstab", "gmres"} or callable, optional
            What runs on the device, out of `gsparse.linalg`.
        M : operator, optional
            Preconditioner for `method`.
        rtol : float, optional
            The residual of a solve on the device, relative to its right-hand side.
        **options
            Other arguments of `method`.

        Returns
        -------
        gsparse.linalg.AcceleratedOperator
            Its page describes how it works.

        Raises
        ------
        ShapeError
            Where the matrix is not square.
        """
        return cast(LinearOperator, UPPER_LAYERS["accelerated"](self, method, M, rtol, **options))

    def _repr_html_(self) -> str:
        return cast(str, UPPER_LAYERS["html"](self))
