"""Random numbers of the tests: the fixture `rng`, and the option ``--seed``, which also controls Hypothesis.

By default a test draws the same numbers in each run, so that no run fails by chance. ``--seed random``, which
``.ci/whole`` uses, chooses a seed and prints it. ``--seed`` with that number repeats the random numbers of `rng`, and
Hypothesis prints how to repeat an example of its own. The quick choice of tests tries fewer examples.
"""

from __future__ import annotations

import os
import secrets
from zlib import crc32

import hypothesis
import numpy as np
import pytest

from tests.sample import is_quick

__all__ = ["num_examples", "rng", "seed"]

pytest_plugins = ["tests.sample"]  # adds the options that `is_quick` reads

_DEFAULT = "0"
_FEW_EXAMPLES = 4  # of Hypothesis, in the quick choice


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", default=_DEFAULT, help='the seed of random numbers, or "random" (default: %(default)s)')


def pytest_configure(config: pytest.Config) -> None:
    is_repeatable = config.option.seed == _DEFAULT
    most = {"max_examples": _FEW_EXAMPLES} if is_quick(config) else {}
    # No deadline of an example: a busy machine exceeds any.
    hypothesis.settings.register_profile("gsparse", derandomize=is_repeatable, deadline=None, **most)
    hypothesis.settings.load_profile("gsparse")
    if config.option.seed == "random":
        config.option.seed = str(secrets.randbelow(2**32))  # before pytest-xdist passes the options to its workers
    if not config.option.seed.isdigit():
        raise pytest.UsageError(f'--seed must be a number or "random", not {config.option.seed!r}')


def pytest_report_header(config: pytest.Config) -> str:
    return f"random numbers: --seed {config.option.seed}"


def num_examples(most: int, *, most_quick: int = _FEW_EXAMPLES) -> int:
    """Return how many examples Hypothesis tries: `most` in a whole run, and `most_quick` in the quick choice.

    The environment variable GSPARSE_FUZZ_EXAMPLES replaces both.
    """
    is_quick_choice = hypothesis.settings.default.max_examples == _FEW_EXAMPLES
    return int(os.environ.get("GSPARSE_FUZZ_EXAMPLES", most_quick if is_quick_choice else most))


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """Return the seed of this run."""
    return int(pytestconfig.option.seed)


@pytest.fixture
def rng(request: pytest.FixtureRequest, seed: int) -> np.random.Generator:
    """Return a generator of random numbers that depend on the seed of the run and on the name of the test."""
    return np.random.default_rng([seed, crc32(request.node.nodeid.encode())])
