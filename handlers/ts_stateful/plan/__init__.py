"""A configuration for so many sessions on such hardware.

Owns the choice of every number that depends on them, and the reason that is written beside it. What is planned passes
`config_check`; what cannot work is refused. Knows nothing of command lines.
"""

from ts_stateful.plan.asked import Asked, PlanRefused
from ts_stateful.plan.document import Plan, make_plan

__all__ = ["Asked", "Plan", "PlanRefused", "make_plan"]
