"""A busy machine is no failure: property tests here have no time limit per example."""

from hypothesis import settings

settings.register_profile("data", deadline=None)
settings.load_profile("data")
