"""The cluster of the tests. A module with another number of workers than three has it as `NUM_WORKERS`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest) -> Iterator[Any]:
    from tests.ranks.faults import cluster_of

    with cluster_of(getattr(request.module, "NUM_WORKERS", 3)) as client:
        yield client


@pytest.fixture
def client(shared: Any, request: pytest.FixtureRequest) -> Any:
    shared.wait_for_workers(getattr(request.module, "NUM_WORKERS", 3), timeout=120)
    return shared


@pytest.fixture
def workers(client: Any) -> list[str]:
    from gsparse.distributed.client.scheduler import known_workers

    return sorted(known_workers(client))
