"""Time every format beside the other libraries of the device, in one run: ``python -m gsparse bench``."""

from gsparse.bench.problems import MODEL_PROBLEMS, Problem, all_problems, find_problem, matrix_folder
from gsparse.bench.records import Record, Run
from gsparse.bench.runner import Settings, measure, run

__all__ = [
    "MODEL_PROBLEMS",
    "Problem",
    "Record",
    "Run",
    "Settings",
    "all_problems",
    "find_problem",
    "matrix_folder",
    "measure",
    "run",
]
