"""The option ``--library-warnings``, which makes warnings of other libraries errors.

Without it, the rules of ``pyproject.toml`` hold, so that a new release of another library does not fail the tests.
``.ci/whole`` uses it.
"""

from __future__ import annotations

import pytest

# Later rules take precedence over earlier ones and over those of pyproject.toml.
RULES = (
    "error:::(gsparse|tests|examples|asv_bench|benchmarks|__main__)",
    "error:::(numpy|scipy|numba|llvmlite|cupy|cupyx|torch|jax|dask|distributed|tornado|pyamg|sklearn|networkx|pymetis)",
    "error:::(matplotlib|tqdm|threadpoolctl|hypothesis|numpydoc|sphinx|sphinx_gallery)",
    "error:::(ast|asyncio|contextlib|ctypes|gzip|importlib|json|multiprocessing|pickle|re|socket|sqlite3|ssl|subprocess)",
    "error:::(tarfile|tempfile|threading|unittest|weakref|zipfile|zlib)",
    "error::ResourceWarning",
    "error::pytest.PytestUnhandledThreadExceptionWarning",
    "error::pytest.PytestUnraisableExceptionWarning",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--library-warnings", action="store_true", help="make warnings of other libraries errors")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.library_warnings:
        for rule in RULES:
            config.addinivalue_line("filterwarnings", rule)
