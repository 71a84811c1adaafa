"""A search whose storage is a PostgreSQL database."""

from __future__ import annotations

import pytest
from postgres import cluster

from prefect_tao.catalog.nouns import SearchParameter
from prefect_tao.searching.search_plan import SearchPlan
from prefect_tao.searching.space import space_of
from prefect_tao.searching.study import Study


def test_a_search_goes_on_in_a_postgres_database() -> None:
    plan = SearchPlan("hyperband", max_epochs=9, seed=3)
    row = {"name": "lr", "type": "float", "default": 1e-3, "min": 1e-6, "max": 1.0, "log": True}
    space = space_of([SearchParameter.model_validate(row)], {})
    with cluster() as address:
        storage = address.replace("+asyncpg", "")
        study = Study.open(storage, "on-postgres", plan, space)
        asked = [study.ask() for _ in range(3)]
        assert all(asked)
        study.report(0, 1, 0.25)
        study.tell(0, 0.5)
        study.tell(1, None, "out of memory")
        again = Study.open(storage, "on-postgres", plan, space)
        assert again.history == study.history
        assert [one.number for one in again.running] == [2]
        assert again.history[0].result == pytest.approx((0.5,))
        assert again.history[0].values == asked[0].values  # type: ignore[union-attr]
