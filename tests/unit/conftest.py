"""Fixtures that unit tests share with the scenarios."""

from tests.support.fixtures import *  # noqa: F403
