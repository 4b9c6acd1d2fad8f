"""Tests of one group run in one process: what they share is made once. Some versions of pytest break that silently."""

from __future__ import annotations

import os

import pytest


@pytest.mark.xdist_group("groups")
def test_groups_are_kept_together(request):
    if request.config.getoption("loadgroup", False):
        assert request.node.nodeid.endswith("@groups"), os.environ.get("PYTEST_XDIST_WORKER")
