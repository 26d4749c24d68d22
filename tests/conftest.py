"""Shared fixtures: where the reference data lies, and one thread so that runs are deterministic and polite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# the same examples in every run, and no verdict that depends on how busy the machine is
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch; child processes follow
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SHARED = Path(os.environ.get("TURNCREDIT_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of reference data beside the checkout; tests that need it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("reference data (../shared) is not here")
    return SHARED
