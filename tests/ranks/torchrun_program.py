"""A program for `torchrun`: its ranks multiply and solve, and rank 0 prints how far the results are from SciPy's.

torchrun --nproc-per-node=2 -m tests.ranks.torchrun_program
"""

from __future__ import annotations

import json
import os

import numpy as np

import gsparse.linalg as gla
from gsparse.distributed import RowPartition, from_torchrun
from tests.linalg.problems import laplacian, right_hand_side


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    S = laplacian(10)
    b, rows = right_hand_side(S), RowPartition.by_rows(S.shape[0], size)
    own = rows.rows(rank)
    found = []
    for _ in range(2):  # the second matrix connects the ranks again, at the same port
        A = from_torchrun(S[own], device="cpu")
        with A.communicator as communicator:
            x, info = gla.cg(A, b[own], rtol=1e-10, M=gla.jacobi(A.diagonal))
            errors = np.array([np.abs(A @ b[own] - (S @ b)[own]).max(), np.abs(A @ x - b[own]).max(), info])
            communicator.allreduce(errors)
        found.append(errors.tolist())
    if rank == 0:
        print(json.dumps({"ranks": size, "errors": found}))


if __name__ == "__main__":
    main()
