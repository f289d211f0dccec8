"""The command line: ``python -m gsparse COMMAND``, or ``gsparse COMMAND`` once installed. Each command has a file."""

from gsparse.cli.entry import main

__all__ = ["main"]
