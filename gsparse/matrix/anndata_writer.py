"""Files of AnnData objects that hold our matrices.

anndata looks up the writer of an object by its exact class, so for a subclass it does not find the writer of
`scipy.sparse.csr_array`. Its registry of writers is private (`anndata.experimental.write_dispatched` is public, but
takes a callback at each call). If a later anndata has no such registry, no writer is registered, and anndata refuses
the matrix.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any

from gsparse.matrix.host_operations import counted_scipy_array


def offer_writers(classes: Iterable[Any]) -> None:
    """Register writers of these classes with anndata, once, if this process has imported it."""
    if "anndata" in sys.modules:
        for cls in classes:
            _register(cls)


@cache
def _register(cls: Any) -> None:
    """Register a writer with anndata, which writes a matrix as SciPy's array; do nothing if anndata has changed."""
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
