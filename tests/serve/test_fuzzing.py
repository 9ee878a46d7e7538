"""Requests made up from our own OpenAPI document: every answer is one that the document promises, and none is a 5xx."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

schemathesis = pytest.importorskip("schemathesis")
# Limits and languages are those of a server, not of the document: what it promises may still be too much for this one.
RUNTIME = [schemathesis.checks.positive_data_acceptance]
EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def test_the_interface_keeps_its_promises(make, shouter):
    schema = schemathesis.openapi.from_asgi("/openapi.json", make(make.behind(shouter)))
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 10
    for operation in operations:

        @given(case=operation.as_strategy())
        @EXAMPLES
        def keeps(case):
            case.call_and_validate(excluded_checks=RUNTIME)

        keeps()
    assert shouter.batches
