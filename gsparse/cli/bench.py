"""``bench``: time every format beside other libraries with `gsparse.bench`, and draw the results."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse import plot
from gsparse.bench import command
from gsparse.bench.problems import Problem
from gsparse.bench.records import Run
from gsparse.cli.common import Command

__all__ = ["COMMAND"]


def run(options: argparse.Namespace) -> int:
    """Measure, and draw the figures where ``--plot`` asks for them."""
    outcome = command.execute(options)
    if outcome is None:
        return 0
    results, problems = outcome
    if options.plot:
        for path in plot.save_figures(options.plot, results.records, _matrices_to_draw(problems, results)):
            print(f"wrote {path}")
    return command.exit_code(results)


def _matrices_to_draw(problems: Sequence[Problem], run: Run) -> list[tuple[str, Callable[[], Any]]]:
    """Return the name of each measured matrix, with a function that makes the matrix again on the host."""
    measured = {record.matrix for record in run.records}
    return [(p.name, partial(_make_on_host, p)) for p in problems if p.pictured and p.name in measured]


def _make_on_host(problem: Problem) -> Any:
    data, indices, indptr, shape = problem.make(np)
    return sp.csr_array((data, indices, indptr), shape=shape)


COMMAND = Command("time every format beside the other libraries on this machine", command.add_arguments, run)
