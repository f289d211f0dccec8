"""One level of smoothed aggregation: from a matrix to the transfers and the next coarser matrix.

    |A|  →  strong connections  →  aggregates  →  pattern of P  →  structures of R, A·P and R·A·P     `Coarsening`
    A, B, the largest eigenvalue  →  T  →  P  →  R  →  R·A·P, and B of the coarser level               `Coarsening.fill`

P is the prolongation, R the restriction, T the tentative prolongation, and B the near-nullspace candidates. The
structures are found once. `fill` can be called again for other values (Vaněk, Mandel and Brezina 1996; aggregates as in
Bell, Dalton and Olson 2012).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr
from gsparse.kernels.aggregation import OUTSIDE, UNDECIDED, Examination, NodePattern
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.set_up import BlockPattern
from gsparse.linalg.multigrid.options import Phases, Strength
from gsparse.sparse.arithmetic import CsrProduct, combine, may_have_blocks
from gsparse.sparse.block_products import are_worth, block_pattern
from gsparse.sparse.reshaping import CsrTranspose

_Matrix = TypeVar("_Matrix")

# Function that returns the block patterns of both factors of a product; None if a product by blocks is not faster.
FindBlocks = Callable[[], tuple[BlockPattern, BlockPattern] | None]

# Weight of the step that smooths the prolongator, before it is divided by the largest eigenvalue of D⁻¹A.
OMEGA = 4 / 3
# Roots of aggregates are chosen in generations, in the order of the nodes; this is the maximum number of generations. A
# mesh of n³ points takes about 2.3·n generations, a mesh of n² points 1.1·n, and a chain of n points n/3. Nodes that
# are undecided after these generations are ordered by a hash, which takes about ten more generations.
_MOST_GENERATIONS = 2048
_ALL_GENERATIONS = 2**31 - 2
# If more than this fraction of all nodes have no root as a neighbour, more aggregates are made of these nodes. The
# roots of such aggregates have at least _FEWEST_NEIGHBOURS neighbours.
_MANY_OUTSIDE, _FEWEST_NEIGHBOURS = 0.25, 3


def aggregate_nodes(device: Device, graph: Csr) -> tuple[Array, int]:
    """Group the nodes of a graph with a symmetric structure into aggregates.

    Returns
    -------
    (array of int32, int)
        The aggregate of each node, -1 for nodes without neighbours, and the number of aggregates. Synchronizes.
    """
    kernels, xp = kernels_of(device), device.xp
    labels = xp.full(graph.num_rows, UNDECIDED, np.int32)
    num_undecided, num_outside = kernels.aggregation.independent_set(
        device, graph, labels, hashed=False, most_generations=_MOST_GENERATIONS, fewest=0
    )
    if num_undecided:
        num_outside = kernels.aggregation.independent_set(
            device, graph, labels, hashed=True, most_generations=_ALL_GENERATIONS, fewest=0
        )[1]
    if num_outside > _MANY_OUTSIDE * graph.num_rows:
        labels = xp.where(labels == OUTSIDE, np.int32(UNDECIDED), labels)
        kernels.aggregation.independent_set(
            device, graph, labels, hashed=True, most_generations=_ALL_GENERATIONS, fewest=_FEWEST_NEIGHBOURS
        )
    return kernels.aggregation.join_aggregates(device, graph, labels)


def strong_graph(device: Device, nodes: Csr, examination: Examination, strength: Strength, symmetry: str) -> Csr:
    """Return the graph of strong connections, with a symmetric structure."""
    kernels = kernels_of(device)
    graph = kernels.aggregation.strong_connections(device, nodes, examination.scales, strength.theta)
    if symmetry != "nonsymmetric":
        return graph
    graph = graph.with_data(device.xp.abs(graph.data))
    return combine(device, "maximum", graph, kernels.transpose.csr_transpose(device, graph))


def group_nodes(device: Device, aggregates: Array, count: int) -> tuple[Array, Array]:
    """Return bounds and order: ``order[bounds[a]:bounds[a + 1]]`` are the nodes of aggregate a."""
    # Nodes without an aggregate are sorted to the end.
    numbers = device.xp.where(aggregates < 0, np.int32(count), aggregates)
    order, bounds = kernels_of(device).transpose.order_by_row(device, numbers, count + 1)
    return bounds[: count + 1], order


@dataclass(frozen=True, eq=False)
class Transfers(Generic[_Matrix]):
    """The transfers of one level and the coarser matrix: `Csr` on one device, `RankRows` over ranks.

    Attributes
    ----------
    prolongation, restriction : Csr or RankRows
        P and R.
    coarse : Csr or RankRows
        R·A·P.
    candidates, left_candidates : array
        Near-nullspace candidates of the coarser matrix, and of its adjoint. Over ranks, the rows of this rank.
    """

    prolongation: _Matrix
    restriction: _Matrix
    coarse: _Matrix
    candidates: Array
    left_candidates: Array


class Coarsening:
    """The structure of a level's transfers. `gsparse.distributed` has a subclass for a matrix over ranks.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    matrix : Csr or RankRows
        The matrix of the level.
    block_size : int
    symmetry : {"hermitian", "symmetric", "nonsymmetric"}
    strength : Strength
    phases : Phases

    Attributes
    ----------
    aggregates : array of int32, shape (num_nodes,)
    num_aggregates : int
    unfiltered_bound, diagonal_range
        The fields of the same name of the latest `Examination`.
    """

    def __init__(
        self, device: Device, matrix: Any, block_size: int, symmetry: str, strength: Strength, phases: Phases
    ) -> None:
        self._device, self._block_size, self._symmetry, self._strength = device, block_size, symmetry, strength
        nodes, examination = self.examine(matrix, phases)
        nodes = self._own_nodes(nodes)
        graph = phases.run("strength", strong_graph, device, nodes, examination, strength, symmetry)
        self.aggregates, self.num_aggregates = phases.run("aggregation", aggregate_nodes, device, graph)
        # What `group_nodes` returns. It takes much memory, and is stored only when the first update needs it.
        self._groups: tuple[Array, Array] | None = None
        # Two items, one for the prolongator of A and one for that of the adjoint: its pattern by nodes, and its
        # (indptr, indices).
        self._patterns: list[tuple[NodePattern, tuple[Array, Array]]] = []
        self._products: dict[str, CsrProduct] = {}
        self._transpose = CsrTranspose(device)

    def _own_nodes(self, nodes: Csr) -> Csr:
        """Return the graph without connections to nodes of other ranks, because aggregates belong to one rank."""
        return nodes

    def examine(self, matrix: Any, phases: Phases) -> tuple[Csr, Examination]:
        """Examine the values of a matrix with this structure, and store the `Examination` for `fill`. Synchronizes."""
        examined: tuple[Csr, Examination] = phases.run("strength", self._examine, matrix)
        self._examined: tuple[Csr, Examination] | None = examined
        self.unfiltered_bound, self.diagonal_range = examined[1].unfiltered_bound, examined[1].diagonal_range
        return examined

    def _examine(self, matrix: Any) -> tuple[Csr, Examination]:
        kernels, size, nodes = kernels_of(self._device), self._block_size, matrix
        if size > 1:
            nodes = kernels.aggregation.block_weights(self._device, matrix, size)
            nodes = replace(nodes, shape=(nodes.num_rows, matrix.num_cols // size))
        return nodes, kernels.aggregation.examine_rows(
            self._device, matrix, nodes, size, self._strength.measure, self._strength.dropping_theta
        )

    def _orthonormalize(self, groups: tuple[Array, Array], candidates: Array) -> tuple[Array, Array]:
        return kernels_of(self._device).prolongation.orthonormal_candidates(
            self._device, *groups, candidates, self._block_size
        )

    def _theta(self, examination: Examination) -> float:
        return self._strength.dropping_theta if examination.num_dropped else 0.0

    def _pattern(self, examined: tuple[Csr, Examination], aggregates: Array, count: int) -> NodePattern:
        """Return the nonzero blocks (node, aggregate) of P. `aggregates` holds the aggregate of each column's node."""
        (nodes, examination), kernels = examined, kernels_of(self._device)
        return kernels.prolongation.prolongator_pattern(
            self._device, nodes, aggregates, count, examination.scales, self._theta(examination)
        )

    def _values(
        self,
        csr: Csr,
        examined: tuple[Csr, Examination],
        pattern: NodePattern,
        aggregates: Array,
        tentative: Array,
        radius: float,
    ) -> Array:
        """Return the values of the smoothed prolongator."""
        (nodes, examination), values_of = examined, kernels_of(self._device).prolongation.prolongator_values
        omega = OMEGA / (min(examination.bound, radius) or 1.0)
        scales, theta = examination.scales, self._theta(examination)
        return values_of(
            self._device, csr, nodes, pattern, aggregates, scales, theta, tentative, self._block_size, omega
        )

    def fill(
        self, csr: Csr, candidates: Callable[[], tuple[Array, Array]], radius: float, phases: Phases
    ) -> Transfers[Csr]:
        """Compute the transfers and the coarser matrix for the matrix that was examined last. Synchronizes.

        Arrays are freed as soon as possible, because the products need the most memory.

        Parameters
        ----------
        csr : Csr
        candidates : callable
            Function that returns the near-nullspace candidates of the matrix and of its adjoint, of shape (num_rows,
            k). The candidates of the adjoint are only used for a nonsymmetric matrix.
        radius : float
            An estimate of the largest magnitude of an eigenvalue of D⁻¹A.
        phases : Phases
        """
        device = self._device
        groups = self._groups or group_nodes(device, self.aggregates, self.num_aggregates)
        of_right, of_left = phases.run("candidates", candidates)
        if self._symmetry != "nonsymmetric":
            del of_left
        tentative, coarse = phases.run("candidates", self._orthonormalize, groups, of_right)
        del of_right
        examined, self._examined = self._examined, None
        assert examined is not None
        P = phases.run("prolongation", self._smooth, 0, csr, examined, tentative, radius)
        del examined, tentative
        if self._symmetry == "nonsymmetric":
            tentative, left_coarse = phases.run("candidates", self._orthonormalize, groups, of_left)
            R = phases.run("prolongation", self._smooth_left, csr, tentative, radius)
            del of_left, tentative
        else:
            left_coarse = coarse
            R = phases.run("transpose", self._transpose, P)
            R = R.with_data(device.xp.conj(R.data)) if self._symmetry == "hermitian" and R.dtype.kind == "c" else R
        R = replace(R, is_canonical=True)
        self._groups = groups if self._products else None
        del groups
        A_coarse = phases.run("products", self._galerkin_product, csr, P, R)
        A_coarse = self._without_empty_rows(A_coarse, coarse)
        return Transfers(P, R, A_coarse, coarse, left_coarse)

    def _smooth(self, number: int, csr: Csr, examined: tuple[Csr, Examination], tentative: Array, radius: float) -> Csr:
        """Return the smoothed prolongator of the matrix if `number` is 0, or of its adjoint if it is 1."""
        device, k, expand = self._device, tentative.shape[1], kernels_of(self._device).prolongation.expand_pattern
        if len(self._patterns) == number:
            pattern = self._pattern(examined, self.aggregates, self.num_aggregates)
            self._patterns.append((pattern, expand(device, pattern.indptr, pattern.indices, self._block_size, k)))
        pattern, (indptr, indices) = self._patterns[number]
        data = self._values(csr, examined, pattern, self.aggregates, tentative, radius)
        return Csr((csr.num_rows, k * self.num_aggregates), indptr, indices, data, is_canonical=True)

    def _smooth_left(self, csr: Csr, tentative: Array, radius: float) -> Csr:
        """Return the adjoint of the smoothed prolongator of the adjoint matrix."""
        transpose, device = kernels_of(self._device).transpose.csr_transpose, self._device
        adjoint = replace(transpose(device, csr), is_canonical=True)
        adjoint = adjoint.with_data(device.xp.conj(adjoint.data))
        R = self._transpose(self._smooth(1, adjoint, self._examine(adjoint), tentative, radius))
        return R.with_data(device.xp.conj(R.data))

    def _galerkin_product(self, csr: Csr, P: Csr, R: Csr) -> Csr:
        """Return R·A·P. In updates, also store the structure of A·P, which is larger than all other matrices here."""
        is_update = bool(self._products)
        AP, of_AP = self._multiply("A·P", csr, P, partial(self._blocks_of_A_and_P, csr, P))
        if is_update:
            self._keep("A·P", of_AP)
        coarse, of_coarse = self._multiply("R·A·P", R, AP, partial(self._blocks_of_R_and_AP, R, AP, of_AP.pattern))
        self._keep("R·A·P", of_coarse)
        return coarse

    def _multiply(self, name: str, a: Csr, b: Csr, find_blocks: FindBlocks) -> tuple[Csr, CsrProduct]:
        """Return a·b, and the `CsrProduct` with which a further product of this structure is faster."""
        known = self._products.get(name)
        if known is None:
            known = CsrProduct(self._device, a, b, find_blocks() if may_have_blocks(a, b) else None)
            result = known.result
        else:
            result = known.update(a, b)
        return replace(result, is_canonical=True), known

    def _keep(self, name: str, product: CsrProduct) -> None:
        """Store the structure of a product, without values, for updates."""
        product.forget_values()
        self._products[name] = product

    def _blocks_of_A_and_P(self, A: Csr, P: Csr) -> tuple[BlockPattern, BlockPattern] | None:
        """Return the block patterns of A and P; None if their product by blocks is not faster. Synchronizes.

        P consists of full blocks. Return None also if A does not consist of full blocks.
        """
        device, size, k = self._device, self._block_size, P.num_cols // self.num_aggregates
        if not are_worth(size, size, k):
            return None
        if any(extent % size for extent in kernels_of(device).blocks.full_blocks(device, A)):  # synchronizes
            return None
        reached = self._patterns[0][0]
        shape = A.num_rows // size, self.num_aggregates
        blocks = Csr(shape, reached.indptr, reached.indices, device.no_values(P.dtype), is_canonical=True)
        return block_pattern(device, A, (size, size)), BlockPattern((size, k), blocks)

    def _blocks_of_R_and_AP(
        self, R: Csr, AP: Csr, pattern: BlockPattern | None
    ) -> tuple[BlockPattern, BlockPattern] | None:
        """Return the block patterns of R and A·P; None if their product by blocks is not faster. Synchronizes.

        `pattern` is the block pattern of A·P if known. If it is None, the blocks of A·P have one row each.
        """
        device, k = self._device, AP.num_cols // self.num_aggregates
        inner = 1 if pattern is None else self._block_size
        if not are_worth(k, inner, k):
            return None
        return block_pattern(device, R, (k, inner)), pattern or block_pattern(device, AP, (1, k))

    def _without_empty_rows(self, coarse: Csr, candidates: Array) -> Csr:
        """Put 1 on the diagonal of empty rows, whose candidates depend linearly on earlier candidates."""
        xp, k = self._device.xp, candidates.shape[1]
        if k == 1:
            own_values = candidates.reshape(-1)
        else:
            numbers = xp.arange(coarse.num_rows)
            own_values = candidates[numbers, numbers % k]
        if kernels_of(self._device).reductions.first_where(self._device, own_values, "zero") is None:  # synchronizes
            return coarse
        is_empty = own_values == 0
        rows = kernels_of(self._device).sparse_rows.row_numbers(self._device, coarse.indptr, coarse.nnz)
        return coarse.with_data(xp.where((rows == coarse.indices) & is_empty[rows], 1, coarse.data))
