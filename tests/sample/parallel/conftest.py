"""Fixtures: the names of a test module's program, and its network."""

from typing import Any

import pytest

from dithc.model import DiT


@pytest.fixture(scope="module")
def scope(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return what the module's program `SAMPLING` defines, or the common program of networks."""
    found: dict[str, Any] = {}
    exec(getattr(request.module, "SAMPLING", None) or request.module.NETWORK, found)
    return found


@pytest.fixture(scope="module")
def network(scope: dict[str, Any]) -> DiT:
    return scope["network"]({})
