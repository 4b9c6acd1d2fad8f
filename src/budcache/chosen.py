"""The one policy that is meant, out of what users give: a policy, a ladder with a budget, or the path of either."""

from __future__ import annotations

import os

from budcache.errors import PolicyError
from budcache.policy import Ladder, Policy, load

__all__ = ["PolicyLike", "choose", "opened"]

PolicyLike = Policy | Ladder | str | os.PathLike[str]


def opened(policy: PolicyLike) -> Policy | Ladder:
    """A policy or ladder, read from its file if it is a path."""
    found = load(policy) if isinstance(policy, str | os.PathLike) else policy
    if not isinstance(found, Policy | Ladder):
        raise PolicyError(f"expected a policy, a ladder or a path, got {type(found).__name__}.")
    return found


def choose(policy: PolicyLike, budget: int | None = None) -> Policy:
    """The one policy that is meant, from a policy, a ladder with a budget, or a path."""
    policy = opened(policy)
    if isinstance(policy, Ladder):
        if budget is not None:
            return policy[budget]
        if len(policy) == 1:
            return policy.rungs[0]
        raise PolicyError(f"this is a ladder of budgets {policy.budgets_text}. Choose one of them as the budget.")
    if budget is not None and budget != policy.budget:
        raise PolicyError(
            f"a budget of {budget} was asked for, but this policy makes {policy.budget} calls. "
            "Leave the budget out, or give a ladder."
        )
    return policy
