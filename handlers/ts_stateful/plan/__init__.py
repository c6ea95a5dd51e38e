"""A configuration for a number of sessions on given hardware. It passes `config.check`, or the request is refused."""

from ts_stateful.plan.asked import Asked, PlanRefused
from ts_stateful.plan.document import START, Plan, make_plan

__all__ = ["START", "Asked", "Plan", "PlanRefused", "make_plan"]
