"""A few rounds of the scenario in which workers fail while they write a checkpoint."""

from __future__ import annotations

import pytest

pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")

from tests.ranks.checkpoint_scenario import FAULTS, run_rounds

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore")]  # dask and tornado warn


def test_a_checkpoint_during_which_a_rank_dies_is_the_older_or_the_newer_matrix() -> None:
    rounds = list(run_rounds(len(FAULTS), seed=3))
    assert [found.fault for found in rounds] == list(FAULTS)
    assert not [found for found in rounds if not found.is_good]
