"""The cluster of the tests that make faults. Tests that need another one have a fixture `client` of their own."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def _collect_garbage(request: pytest.FixtureRequest) -> Iterator[None]:
    """Free what dask leaves to the garbage collector before the end of a module whose tests ignore dask's warnings.

    Dask does not close the connections of requests that it cancels. If they were freed in a test of another module, it
    would fail because of a warning.
    """
    yield
    if any(mark.name == "filterwarnings" for mark in request.node.iter_markers()):
        gc.collect()


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    from tests.ranks.faults import cluster_of

    with cluster_of(3) as client:
        yield client


@pytest.fixture
def client(shared: Any) -> Any:
    shared.wait_for_workers(3, timeout=120)
    return shared
