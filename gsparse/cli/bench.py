"""``bench``: times of every format beside other libraries, by `gsparse.bench`, and their pictures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse import plot
from gsparse.bench import command as bench
from gsparse.bench.problems import Problem
from gsparse.bench.records import Run
from gsparse.cli.common import Command

__all__ = ["COMMAND"]


def run(options: argparse.Namespace) -> int:
    """Measure, and draw what was measured."""
    done = bench.execute(options)
    if done is None:
        return 0
    found, problems = done
    if options.plot:
        for path in plot.save_figures(options.plot, found.records, _matrices(problems, found)):
            print(f"wrote {path}")
    return bench.exit_code(found)


def _matrices(problems: Sequence[Problem], run: Run) -> list[tuple[str, Callable[[], Any]]]:
    """Give the name of each matrix that was measured, and what makes it again, on the host."""
    measured = {record.matrix for record in run.records}
    return [(p.name, partial(_on_host, p)) for p in problems if p.pictured and p.name in measured]


def _on_host(problem: Problem) -> Any:
    data, indices, indptr, shape = problem.make(np)
    return sp.csr_array((data, indices, indptr), shape=shape)


COMMAND = Command("time every format beside the libraries of this machine", bench.add_arguments, run)
