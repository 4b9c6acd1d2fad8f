"""The one policy that is meant, out of what users give: a policy, a ladder with a budget, or where either is kept.

What is kept may be a file, a folder with one, or a repository on the hub: this is where names become values.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

from budcache.errors import FileError, PolicyError
from budcache.hub.reading import download, local
from budcache.policy import FORMAT_VERSION, Ladder, Policy
from budcache.storage.files import read_json
from budcache.wording import quote

__all__ = [
    *("Opened", "PolicyLike", "check_choice", "check_seconds", "choose", "from_pretrained"),
    *("load", "load_ladder", "load_policy", "opened", "parse"),
]


class Opened(NamedTuple):
    """A policy or ladder, and its file on this machine; None if it was in memory, or came from the hub."""

    value: Policy | Ladder
    file: Path | None = None


PolicyLike = Policy | Ladder | Opened | str | os.PathLike[str]


def opened(policy: PolicyLike) -> Opened:
    """A policy or ladder, read if it is a path or a name on the hub."""
    if isinstance(policy, Opened):
        return policy
    if isinstance(policy, str | os.PathLike):
        place = local(policy)
        return Opened(_read(place if place is not None else download(policy), policy), place)
    if not isinstance(policy, Policy | Ladder):
        raise PolicyError(f"expected a policy, a ladder or a path, got {type(policy).__name__}.")
    return Opened(policy)


def choose(policy: PolicyLike, budget: int | None = None) -> Policy:
    """The one policy that is meant, from a policy, a ladder with a budget, or a path."""
    policy = opened(policy).value
    if isinstance(policy, Ladder):
        if budget is not None:
            return policy[budget]
        if len(policy) == 1:
            return policy.rungs[0]
        raise PolicyError(
            f"this is a ladder of budgets {policy.budgets_text}. Choose one of them: "
            f"budget={policy.budgets[0]} in Python, --budget {policy.budgets[0]} on the command line."
        )
    if budget is not None and budget != policy.budget:
        raise PolicyError(
            f"a budget of {budget} was asked for, but this policy makes {policy.budget} calls. "
            "Leave the budget out, or give a ladder."
        )
    return policy


def check_choice(budget: int | None, seconds: float | None) -> None:
    """Refuse a budget and a time together, and a time that is not positive."""
    if budget is not None and seconds is not None:
        raise PolicyError("budget and seconds were both given. A time chooses the budget: leave one of them out.")
    if seconds is not None:
        check_seconds(seconds)


def check_seconds(seconds: object) -> float:
    """A time that can be meant."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < math.inf:
        return float(seconds)
    raise PolicyError(f"seconds is {quote(seconds)}, but a time is a positive number. Give one such as 2.0.")


def load(path: str | os.PathLike[str]) -> Policy | Ladder:
    """Read a policy or ladder, whichever it is: a file, a folder with one, or `owner/name` on the hub."""
    return opened(path).value


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Read a policy file; a ladder file is refused with the budgets to choose from."""
    found = load(path)
    if isinstance(found, Ladder):
        raise PolicyError(
            f"{path} is a ladder of budgets {found.budgets_text}, not one policy. Choose one of them: "
            f"budget={found.budgets[0]} in Python, --budget {found.budgets[0]} on the command line."
        )
    return found


def load_ladder(path: str | os.PathLike[str]) -> Ladder:
    """Read a ladder file; a single policy becomes a ladder of one rung."""
    return _as_ladder(load(path))


def from_pretrained(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
) -> Ladder:
    """Read a ladder from the hub, a folder or a file; downloaded once, it is there without a network, too.

    Args:
        name: `owner/name` on the hub, or a path.
        revision: a branch, a tag or a commit; by default the newest.
        cache_dir: by default the cache of `huggingface_hub`.
        local_files_only: take it from the cache, and ask nobody.
        token: as for `huggingface_hub`, for private repositories; it is kept nowhere.
    """
    place = local(name)
    if place is None:
        place = download(name, revision=revision, cache_dir=cache_dir, local_files_only=local_files_only, token=token)
    return _as_ladder(_read(place, name))


def _as_ladder(found: Policy | Ladder) -> Ladder:
    return found if isinstance(found, Ladder) else Ladder(rungs=(found,))


def _read(place: Path, name: str | os.PathLike[str]) -> Policy | Ladder:
    """Read the file that a name stands for; a refusal speaks of it by that name, not by its place in a cache."""
    try:
        data = read_json(place)
    except (PolicyError, FileError) as error:
        raise type(error)(str(error).replace(str(place), str(name))) from None
    try:
        return parse(data)
    except PolicyError as error:
        raise PolicyError(f"{name}: {error}") from None


_KINDS: dict[str, type[Policy] | type[Ladder]] = {"policy": Policy, "ladder": Ladder}


def parse(data: object) -> Policy | Ladder:
    """Make the value that already decoded JSON describes."""
    if not isinstance(data, dict):
        raise PolicyError(f"a policy is a JSON object, got {type(data).__name__}. Is this the right file?")
    if data.get("kind") == "comparison":  # has versions of its own
        raise PolicyError(
            "this is a comparison, not a policy. Show it with: budcache compare --show-only --out, and its folder."
        )
    version = data.get("version")
    if version is None:
        raise PolicyError("there is no field 'version', so this is not a policy file. Is this the right file?")
    # A newer format may have new fields and kinds, so its version is judged before anything else.
    if isinstance(version, int) and not isinstance(version, bool) and version > FORMAT_VERSION:
        raise PolicyError(
            f"the file has format version {quote(version)}, this budcache reads up to {FORMAT_VERSION}. "
            "Upgrade budcache."
        )
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise PolicyError(f"field 'kind' is {quote(kind)}, but a file holds a 'policy' or a 'ladder'.")
    return _KINDS[kind].model_validate(data)
