"""Ask whether gathers from x explain the errors of predicted times.

    python -m gsparse bench --all --json TIMES.json      on a GPU: measured and predicted times of every format
    python asv_bench/measure_gathers.py TIMES.json [...]

The prediction has no term for gathers from x. For each format and encoding, two constants are fitted to the relative
errors of the prediction: a time for each product, and a time for each sector of 32 bytes of x that 128 neighbouring
rows read. The table has the time of a sector, and by how much the mean error is smaller than with the first constant
alone. If all formats have about the same time of a sector, such a term would not change which format is chosen.
Matrices with more than 10 million entries are left out.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gsparse.bench.problems import find_problem
from gsparse.bench.records import Run

SECTOR_BYTES, NEIGHBOURS = 32, 128
MOST_ENTRIES = 10_000_000
FEWEST_MATRICES = 12


@cache
def count_sectors(name: str, itemsize: int) -> int:
    """Return the number of sectors of x that groups of neighbouring rows of a matrix read, added up over the groups."""
    _, indices, indptr, shape = find_problem(name).make(np)
    groups = np.repeat(np.arange(shape[0]) // NEIGHBOURS, np.diff(indptr))
    sectors = np.asarray(indices, np.int64) * itemsize // SECTOR_BYTES
    return int(np.unique(groups * (shape[1] + 1) + sectors).size)


def fit_gathers(times: list[tuple[float, float, int]]) -> tuple[float, float]:
    """Return the time of a sector, and the part by which it makes the mean error smaller.

    Parameters
    ----------
    times : list of (measured, predicted, sectors)
        Times in any unit.
    """
    measured, predicted, sectors = np.array(times).T
    weights = 1 / measured
    errors = []
    solution: Any = None
    for columns in ([np.ones_like(sectors)], [np.ones_like(sectors), sectors]):
        terms, wanted = np.stack(columns, axis=1) * weights[:, None], (measured - predicted) * weights
        solution = np.linalg.lstsq(terms, wanted)[0]
        errors.append(np.sqrt(np.mean((terms @ solution - wanted) ** 2)))
    return float(solution[1]), float(1 - errors[1] / errors[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="TIMES.json")
    times = defaultdict(list)
    for path in parser.parse_args().paths:
        for record in Run.read(path).records:
            if record.kind == "format" and record.kernel_us and record.predicted_us and record.nnz <= MOST_ENTRIES:
                sectors = count_sectors(record.matrix, np.dtype(record.dtype).itemsize)
                times[record.dtype, record.what].append((record.kernel_us, record.predicted_us, sectors))
    print(f"{'dtype':10}{'format':26}{'matrices':>9}{'ps a sector':>13}{'smaller error':>15}")
    for (dtype, what), of_format in sorted(times.items()):
        if len(of_format) >= FEWEST_MATRICES:
            time, gain = fit_gathers(of_format)
            print(f"{dtype:10}{what:26}{len(of_format):>9}{1e6 * time:>13.1f}{gain:>15.0%}")


if __name__ == "__main__":
    main()
