"""Time all formats and other libraries on the same device, in one run: ``python -m gsparse bench``."""

from gsparse.bench.problems import Problem
from gsparse.bench.records import Record, Run
from gsparse.bench.runner import Settings, measure, run

__all__ = ["Problem", "Record", "Run", "Settings", "measure", "run"]
