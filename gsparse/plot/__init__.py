"""Pictures of matrices, solves and benchmark results. Most functions draw into matplotlib Axes and return them.

`density` returns the counts that `sparsity` draws, `html` what a notebook displays, and `save_figures` writes files.
"""

from gsparse.plot.axes import PlotError
from gsparse.plot.multigrid import hierarchy
from gsparse.plot.notebook import html
from gsparse.plot.profiles import profile
from gsparse.plot.runs import save_figures, setup_by_format, thread_scaling, times_by_format
from gsparse.plot.solves import convergence
from gsparse.plot.speed import roofline
from gsparse.plot.structure import density, row_lengths, sparsity
from gsparse.plot.workers import distribution

__all__ = [
    "PlotError",
    "convergence",
    "density",
    "distribution",
    "hierarchy",
    "html",
    "profile",
    "roofline",
    "row_lengths",
    "save_figures",
    "setup_by_format",
    "sparsity",
    "thread_scaling",
    "times_by_format",
]
