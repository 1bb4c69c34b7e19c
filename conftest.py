"""What tests and the examples of docstrings share: every one begins with the same seed, in whatever order they run."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed torch's default generators."""
    torch.manual_seed(0)
