"""The version, for the package's metadata and for the keys of the caches on disk."""

__version__ = "0.1.0.dev0"
