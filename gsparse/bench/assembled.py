"""Finite-element matrices that scikit-fem assembles, on structured meshes and on meshes with displaced nodes.

Most matrices of users are assembled. On a structured mesh, values repeat up to rounding errors, so that a matrix of
millions of entries has only thousands of distinct values. On a mesh with displaced nodes, hardly any two values are
equal. On both kinds of mesh, neighbouring rows have columns that are close to each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse._version import install_command

# Approximate numbers of entries of the matrices of one discretization.
ENTRIES = ("3e4", "3e5", "3e6")

_SEED = 20261125
# Interior nodes are displaced by at most this fraction of the distance between nodes, along each axis.
_DISPLACEMENT = 0.2


@dataclass(frozen=True)
class Discretization:
    """A differential operator, and the finite elements that discretize it.

    Attributes
    ----------
    mesh, element : str
        The names of classes of scikit-fem.
    dimensions : int
    entries_per_node : float
        Number of entries of the matrix per node of a large structured mesh.
    is_vector : bool
        Whether the operator is linear elasticity, with one unknown per dimension; otherwise it is the Laplacian.
    """

    mesh: str
    element: str
    dimensions: int
    entries_per_node: float
    is_vector: bool = False


ASSEMBLED = {
    "P1 triangles": Discretization("MeshTri", "ElementTriP1", 2, 7),
    "P2 triangles": Discretization("MeshTri", "ElementTriP2", 2, 46),
    "P1 tetrahedra": Discretization("MeshTet", "ElementTetP1", 3, 15),
    "Q1 hexahedra": Discretization("MeshHex", "ElementHex1", 3, 27),
    "elasticity, P1 tetrahedra": Discretization("MeshTet", "ElementTetP1", 3, 135, is_vector=True),
    "elasticity, Q1 hexahedra": Discretization("MeshHex", "ElementHex1", 3, 243, is_vector=True),
}
_DISPLACED = ", displaced nodes"


def assembled_names() -> Iterator[str]:
    """Yield the names of all assembled matrices.

    Examples
    --------
    >>> list(assembled_names())[:2]
    ['P1 triangles 3e4', 'P1 triangles 3e4, displaced nodes']
    """
    for name in ASSEMBLED:
        for entries in ENTRIES:
            yield f"{name} {entries}"
            yield f"{name} {entries}{_DISPLACED}"


def parse_name(name: str) -> tuple[str, float, bool] | None:
    """Return the discretization, the number of entries, and whether nodes are displaced; None for any other name.

    Examples
    --------
    >>> parse_name("P1 triangles 3e4, displaced nodes"), parse_name("R-MAT 15")
    (('P1 triangles', 30000.0, True), None)
    """
    plain = name.removesuffix(_DISPLACED)
    discretization, _, entries = plain.rpartition(" ")
    try:
        return (discretization, float(entries), plain != name) if discretization in ASSEMBLED else None
    except ValueError:
        return None


def assemble(name: str, entries: float, *, displaced: bool = False) -> sp.csr_array:
    """Assemble a matrix on the unit square or cube, on the host.

    Parameters
    ----------
    name : str
        A key of `ASSEMBLED`.
    entries : float
        The approximate number of entries.
    displaced : bool, optional
        Whether the nodes in the interior are displaced at random.

    Raises
    ------
    ModuleNotFoundError
        If scikit-fem is not installed.
    """
    chosen = ASSEMBLED[name]
    try:
        fem = import_module("skfem")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{name!r} needs scikit-fem: {install_command('examples')}", name="skfem") from None
    points = max(3, round((entries / chosen.entries_per_node) ** (1 / chosen.dimensions)))
    mesh = getattr(fem, chosen.mesh).init_tensor(*[np.linspace(0, 1, points)] * chosen.dimensions)
    if displaced:
        mesh = type(mesh)(_displaced(mesh.p, points), mesh.t)
    element = getattr(fem, chosen.element)()
    basis = fem.Basis(mesh, fem.ElementVector(element) if chosen.is_vector else element)
    matrix = sp.csr_array(_operator(chosen).assemble(basis))
    matrix.sum_duplicates()
    return matrix


def _operator(discretization: Discretization) -> Any:
    if not discretization.is_vector:
        return import_module("skfem.models.poisson").laplace
    elasticity = import_module("skfem.models.elasticity")
    return elasticity.linear_elasticity(*elasticity.lame_parameters(1.0, 0.3))


def _displaced(nodes: npt.NDArray[np.float64], points: int) -> npt.NDArray[np.float64]:
    """Return the nodes' coordinates (one axis per row) with interior nodes displaced at random."""
    is_inside = ((nodes > 0) & (nodes < 1)).all(axis=0)
    shifts = np.random.default_rng(_SEED).uniform(-1, 1, nodes.shape) * _DISPLACEMENT / (points - 1)
    displaced: npt.NDArray[np.float64] = nodes + shifts * is_inside
    return displaced
