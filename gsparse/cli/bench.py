"""``bench``: time all formats and other libraries with `gsparse.bench`, and draw the results."""

from __future__ import annotations

import argparse

from gsparse import plot
from gsparse.bench import command
from gsparse.cli.common import Command
from gsparse.plot.axes import save_picture


def run(options: argparse.Namespace) -> int:
    """Measure, and draw the times if ``--plot`` asks for a picture."""
    results = command.execute(options)
    if results is None:
        return 0
    if options.plot:
        save_picture(options.plot, lambda ax: plot.times_by_format(results.records, ax), (12.0, 6.0))
        print(f"wrote {options.plot}")
    return command.exit_code(results)


COMMAND = Command("time every format beside the other libraries on this machine", command.add_arguments, run)
