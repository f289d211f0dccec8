"""The contract of the kernels of smoothed aggregation, a multigrid method: connections, aggregates, and prolongators.

A *node* is a block of `block_size` consecutive rows: the unknowns at one point of a mesh. Nodes are grouped into
aggregates, each of which becomes one node of the coarser level. Arrays about nodes have one element for each node:

    rows of A          0 1 2 | 3 4 5 | 6 7 8 | ...       block_size = 3
    nodes                0       1       2
    aggregates           0       0       1               nodes of the coarser level

Common to all of these kernels
------------------------------
- Matrices are `Csr` on the device, with sorted rows and floating-point values. The structure of a `graph` is symmetric.
  There are fewer than 2³¹ nodes.
- The *weight* of a value is its magnitude, rounded to 17 bits. Decisions compare weights and sums of weights. These
  sums are exact, so decisions depend neither on the order of summation nor on the device.
- The same input gives the same bits, and the same integers on every device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr

# Labels of nodes that are in no aggregate: not decided yet; no neighbour is a root; without neighbours.
UNDECIDED, OUTSIDE, ISOLATED = -1, -2, -3

# The measures of strong connections, with their numbers in kernels. The weight of a connection is compared with the
# largest off-diagonal weight of the row ("classical"), or with the weight of the diagonal ("symmetric").
MEASURES = {"classical": 0, "symmetric": 1}

# An `OUTSIDE` node with more entries than this joins the aggregate of its heaviest connection. Any other node adds up
# its weights to each aggregate, which takes quadratic time, and joins the one with the largest sum.
MOST_SUMMED = 64
# If a node's smoothed row would reach more aggregates than this, the row of the tentative prolongator is not smoothed,
# because smoothing would create dense rows on the coarser level.
MOST_REACHED = 64


def dependence_tolerance(dtype: np.dtype[Any]) -> float:
    """Return the fraction of a candidate's length below which its orthogonal part is rounding error (PyAMG: 1e-10)."""
    return max(1e-10, 100 * float(np.finfo(dtype).eps))


@dataclass(frozen=True, eq=False)
class Examination:
    """The result of `examine_rows`.

    An entry is *dropped* if the weight of its block is less than `theta` times the scale of the row's node. In the
    filtered matrix, each dropped entry is added to the diagonal of its row instead.

    Attributes
    ----------
    scales : array of float64, shape (num_nodes,)
        For each node, the weight with which its connections are compared; see `MEASURES`.
    num_dropped : int
        Number of dropped entries.
    bound, unfiltered_bound : float
        Gershgorin's bounds for the eigenvalues of the filtered and of the unfiltered matrix, after each row has been
        divided by its diagonal element. Rows with a zero on the diagonal do not count.
    diagonal_range : (float, float)
        The smallest and the largest real part of the diagonal elements. An element that is not positive counts as 0.
    """

    scales: Array
    num_dropped: int
    bound: float
    unfiltered_bound: float
    diagonal_range: tuple[float, float]


@dataclass(frozen=True, eq=False)
class NodePattern:
    """The structure of a smoothed prolongator: its rows are nodes, and its columns are aggregates.

    Attributes
    ----------
    indptr, indices : array
        Node i interpolates from the aggregates ``indices[indptr[i]:indptr[i + 1]]``, in ascending order. Both have the
        index dtype of the matrix.
    is_smoothed : array of bool, shape (num_nodes,)
        Whether the rows of a node are smoothed; see `MOST_REACHED`.
    """

    indptr: Array
    indices: Array
    is_smoothed: Array


class AggregationKernels(Protocol):
    """The contract of connections and aggregates. Functions return new arrays unless their docstrings say otherwise."""

    def block_weights(self, device: Device, csr: Csr, block_size: int) -> Csr:
        """Return the matrix of nodes, with an entry for each block that has entries and for each diagonal block.

        The values (float64) are the rounded Frobenius norms of the blocks. Synchronizes.
        """

    def examine_rows(
        self, device: Device, csr: Csr, nodes: Csr, block_size: int, measure: str, theta: float
    ) -> Examination:
        """Return the scale of each node, and properties of the filtered matrix. Synchronizes.

        `nodes` is `csr` itself if `block_size` is 1, else the result of `block_weights`.
        """

    def strong_connections(self, device: Device, nodes: Csr, scales: Array, theta: float) -> Csr:
        """Return the strong and the diagonal entries; `nodes` itself if all entries are. Synchronizes.

        Entry (i, j) is strong if its weight w is positive and w² ≥ θ²·scales[i]·scales[j].
        """

    def independent_set(
        self, device: Device, graph: Csr, labels: Array, *, hashed: bool, most_generations: int, fewest: int
    ) -> tuple[int, int]:
        """Choose roots, no two of which are neighbours or have a common neighbour, and label their neighbours.

        The roots are those of the greedy method: visit undecided nodes in the order of their priorities, make each a
        root, and decide all nodes at distance one and two from it. Nodes whose label is initially not negative are
        ignored, as if they were not in the graph.

        Parameters
        ----------
        graph : Csr
            Only its structure is read.
        labels : array of int32, shape (num_nodes,)
            Updated in place. A root and its neighbours get the number of the root, nodes at distance two `OUTSIDE`.
            Nodes without neighbours become `ISOLATED`.
        hashed : bool
            Whether priorities are hashes of the node numbers. Otherwise they are the node numbers: aggregates are then
            as regular as the mesh, but there are more generations.
        most_generations : int
            A root belongs to the generation after the last one in which a node of higher priority at distance one or
            two was decided. Nodes that would be roots of later generations than this stay undecided.
        fewest : int
            A root with fewer neighbours than this becomes `OUTSIDE`, together with its neighbours.

        Returns
        -------
        (int, int)
            The number of undecided nodes, and the number of `OUTSIDE` nodes. Synchronizes.
        """

    def join_aggregates(self, device: Device, graph: Csr, labels: Array) -> tuple[Array, int]:
        """Return the aggregate of each node (int32, -1 for none), and the number of aggregates. Synchronizes.

        Aggregates are numbered in the order of their roots. An `OUTSIDE` node joins the neighbouring aggregate for
        which the weights of the node's connections have the largest sum; of equal sums, the first counts. A node with
        more than `MOST_SUMMED` entries joins the aggregate of its heaviest connection. A node without a neighbouring
        aggregate gets -1.
        """


class ProlongationKernels(Protocol):
    """Prolongators. Every function returns new arrays."""

    def orthonormal_candidates(
        self, device: Device, bounds: Array, order: Array, candidates: Array, block_size: int
    ) -> tuple[Array, Array]:
        """Orthonormalize the candidates within each aggregate, by the modified Gram-Schmidt method.

        Parameters
        ----------
        bounds, order : array
            ``order[bounds[a]:bounds[a + 1]]`` are the nodes of aggregate a, in ascending order.
        candidates : array, shape (num_rows, k), in C order
        block_size : int

        Returns
        -------
        (array, array)
            Q, of the shape of `candidates` (zero for nodes without aggregate), and R, of shape (k·num_aggregates, k),
            with ``candidates = Q @ R`` in each aggregate. If a candidate depends linearly on the candidates before it,
            its column in Q is zero.
        """

    def prolongator_pattern(
        self, device: Device, nodes: Csr, aggregates: Array, num_aggregates: int, scales: Array, theta: float
    ) -> NodePattern:
        """Return the aggregates from which each node interpolates. Synchronizes.

        Node i interpolates from its own aggregate, and from those of all nodes j for which entry (i, j) is not dropped
        (see `Examination`). With ``theta = 0``, no entry is dropped.
        """

    def expand_pattern(
        self, device: Device, indptr: Array, indices: Array, block_size: int, k: int
    ) -> tuple[Array, Array]:
        """Return the row pointers and columns of a matrix with a full block of `block_size` x k for each entry.

        `indptr` and `indices` are a pattern of blocks, such as a `NodePattern`. If `block_size` and `k` are 1, both are
        returned unchanged. The result has their dtype, or int64 if it has too many entries for that dtype.
        """

    def prolongator_values(
        self,
        device: Device,
        csr: Csr,
        nodes: Csr,
        pattern: NodePattern,
        aggregates: Array,
        scales: Array,
        theta: float,
        tentative: Array,
        block_size: int,
        omega: float,
    ) -> Array:
        """Return the values of (I - ω·D⁻¹·A)·T, where A is the filtered matrix and D its diagonal.

        Terms for aggregates that are not in the row's pattern are dropped. If an element of D is less than a hundredth
        of the unfiltered diagonal element, the latter is used; if the latter is 0 too, the element of D⁻¹ is 0.

        Parameters
        ----------
        tentative : array, shape (num_rows, k)
            T: the result Q of `orthonormal_candidates`.

        Returns
        -------
        array
            The values, in the order of `expand_pattern`.
        """
