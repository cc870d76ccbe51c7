"""Ids of requests: many of one draw, none of them twice."""

from __future__ import annotations

from itertools import islice

from tidegate_sidecar.request_ids import request_ids


def test_each_id_is_new_over_many_draws_and_between_two_sources() -> None:
    ids = [*islice(request_ids(), 1_000), *islice(request_ids(), 1_000)]
    assert len(set(ids)) == len(ids)
    assert {len(bytes.fromhex(one)) for one in ids} == {12}
