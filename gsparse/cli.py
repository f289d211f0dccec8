"""The command line: ``python -m gsparse bench …``, or ``gsparse bench …`` where it is installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse import plot
from gsparse.bench import command as bench
from gsparse.bench.problems import Problem
from gsparse.bench.records import Run
from gsparse.errors import GsparseError

__all__ = ["main"]


@dataclass(frozen=True)
class Command:
    """A subcommand: what it is for, its arguments, and what it does; `run` gives the exit code."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def run_bench(options: argparse.Namespace) -> int:
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


COMMANDS = {
    "bench": Command("time every format beside the libraries of this machine", bench.add_arguments, run_bench),
}


def make_parser() -> argparse.ArgumentParser:
    """Give the parser of every subcommand."""
    parser = argparse.ArgumentParser(prog="gsparse", description=gsparse.__doc__)
    parser.add_argument("--version", action="version", version=f"gsparse {gsparse.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(subparsers.add_parser(name, help=command.help, description=command.help))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and give its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process where left out.

    Returns
    -------
    int
        0; 1 where something measured was wrong; 2 where the command cannot be carried out as given; 130 where it was
        interrupted.
    """
    options = make_parser().parse_args(arguments)
    try:
        return COMMANDS[options.command].run(options)
    except (bench.UsageError, GsparseError, OSError) as error:
        print(f"gsparse {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
