"""Methods of the matrix that call upper layers, and the writer for AnnData files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import Any, cast

from scipy.sparse.linalg import LinearOperator

from gsparse.matrix.host_operations import counted_scipy_array
from gsparse.matrix.matrix_like import MatrixLike


def offer_writers(classes: Iterable[Any]) -> None:
    """Register writers of these classes with anndata, once, if this process has imported anndata."""
    if "anndata" in sys.modules:
        for cls in classes:
            _register(cls)


@cache
def _register(cls: Any) -> None:
    """Register a writer with anndata that writes a matrix as SciPy's array. If anndata has changed, do nothing."""
    try:
        specs, compat = import_module("anndata._io.specs"), import_module("anndata.compat")
        spec = specs.IOSpec("csc_matrix" if cls._by_columns else "csr_matrix", "0.1.0")
        register, groups = specs._REGISTRY.register_write, (compat.H5Group, compat.ZarrGroup)
    except (ImportError, AttributeError):
        return

    def write(group: Any, key: str, matrix: Any, *, _writer: Any, **options: Any) -> None:
        _writer.write_elem(group, key, counted_scipy_array(matrix, "anndata's writer"), **options)

    for group in groups:
        register(group, cls, spec)(write)


UPPER_LAYERS: dict[str, Callable[..., Any]] = {}


class UpperLayers(MatrixLike):
    """Methods that call upper layers."""

    def distribute(self, client: Any = None, **options: Any) -> Any:
        """Spread this matrix over the workers of a dask cluster.

        Parameters
        ----------
        client : distributed.Client, optional
            The client of the cluster; by default dask's current client.
        **options
            Options of `gsparse.distributed.distribute`.

        Returns
        -------
        gsparse.distributed.DistributedMatrix
            The distributed matrix, with a block of rows on each worker.
        """
        return UPPER_LAYERS["distribute"](self, client, **options)

    def accelerated(
        self,
        method: str | Callable[..., Any] = "auto",
        M: Any = None,
        rtol: float | None = None,
        **options: Any,
    ) -> LinearOperator:
        """Return an operator with which SciPy's unmodified solvers run at the speed of the device.

        Parameters
        ----------
        method : {"auto", "cg", "minres", "bicgstab", "gmres"} or callable, optional
            The solver of `gsparse.linalg` that runs on the device.
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
            If the matrix is not square.
        """
        return cast(LinearOperator, UPPER_LAYERS["accelerated"](self, method, M, rtol, **options))

    def _repr_html_(self) -> str:
        return cast(str, UPPER_LAYERS["html"](self))
