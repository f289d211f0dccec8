"""The version, which is also part of the keys of the caches on disk, and the name under which pip finds gsparse."""

__version__ = "0.1.0"

# What `pip install` calls this package. On the package index, "gsparse" is another project, a parser of spreadsheets.
DISTRIBUTION = "gsparse-gpu"


def install_command(extra: str) -> str:
    """Return the command that installs an optional dependency of gsparse, for error messages."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
