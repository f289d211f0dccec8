"""Launch shapes of the passes over a Krylov basis (`src/basis.cuh`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gsparse.kernels.gpu.source_constants import constant

_SOURCE = "basis.cuh"
# Threads of a block, and vectors that a team holds.
THREADS, _TEAM_VECTORS = constant(_SOURCE, "GS_BASIS_THREADS"), constant(_SOURCE, "GS_TEAM_VECTORS")
# A multiprocessor has registers for `_BLOCKS` blocks of a pass; a launch for one right-hand side has no more, so that
# all run at once.
_BLOCKS = constant(_SOURCE, "GS_BASIS_BLOCKS")
# The largest number of teams that share the lanes of a warp. Vectors that they cannot hold are read again.
_TEAMS = constant(_SOURCE, "GS_BASIS_TEAMS")
# Bytes of each vector that a thread has in flight, unless the vectors are complex128.
_BYTES_IN_FLIGHT = constant(_SOURCE, "GS_BYTES_IN_FLIGHT")


@dataclass(frozen=True)
class BasisLaunch:
    """The numbers of teams and blocks of a pass over the first j vectors of a basis.

    Attributes
    ----------
    size : int
        Elements of a vector.
    stored, computed : dtype
        The dtypes of the basis and of the vectors w and u.
    multiprocessors : int
    """

    size: int
    stored: np.dtype[Any]
    computed: np.dtype[Any]
    multiprocessors: int

    @property
    def max_blocks(self) -> int:
        return int(_BLOCKS * self.multiprocessors - 1)

    def teams(self, j: int) -> int:
        """Return the number of teams: enough to hold the vectors, and more if there are few tiles."""
        teams, max_teams = 1, min(_TEAMS, 1 << (max(j, 1) - 1).bit_length())
        while teams < max_teams and (j > teams * _TEAM_VECTORS or self._tiles(2 * teams) <= self.max_blocks):
            teams *= 2
        return teams

    def _tiles(self, teams: int) -> int:
        in_flight = 1 if self.computed.name == "complex128" else _BYTES_IN_FLIGHT // self.stored.itemsize
        return int(-(-self.size // (THREADS // teams * in_flight)))

    def blocks(self, j: int) -> int:
        """Return the number of blocks that work on tiles. One more does what is left of the last iteration."""
        return max(1, min(self._tiles(self.teams(j)), self.max_blocks))

    @staticmethod
    def is_held(j: int) -> bool:
        """Return whether the teams hold all vectors in registers, so that a pass reads them once."""
        return j <= _TEAMS * _TEAM_VECTORS
