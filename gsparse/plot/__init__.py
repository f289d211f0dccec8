"""Pictures of matrices, solves and benchmark results. Most functions draw into matplotlib Axes and return them.

`density` returns the counts that `sparsity` draws, and `html` the HTML for notebooks.
"""

from gsparse.plot.axes import PlotError
from gsparse.plot.multigrid import hierarchy
from gsparse.plot.runs import convergence, distribution, times_by_format
from gsparse.plot.structure import density, html, row_lengths, sparsity

__all__ = [
    "PlotError",
    "convergence",
    "density",
    "distribution",
    "hierarchy",
    "html",
    "row_lengths",
    "sparsity",
    "times_by_format",
]
