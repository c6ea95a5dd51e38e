"""Fixtures that scenarios share with the unit tests."""

from tests.support.fixtures import *  # noqa: F403
