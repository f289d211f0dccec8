"""The cluster of the tests that make faults. Tests that need another one have a fixture `client` of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    from tests.ranks.faults import cluster_of

    with cluster_of(3) as client:
        yield client


@pytest.fixture
def client(shared: Any) -> Any:
    shared.wait_for_workers(3, timeout=120)
    return shared
