"""Publishing a ladder: its file, a card and a picture, in one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from budcache.errors import FileError
from budcache.hub.card import PICTURE, base_model_of, card
from budcache.hub.picture import draw
from budcache.hub.reading import FILE, client, hub_answers, named
from budcache.storage.files import json_text
from budcache.wording import quote

if TYPE_CHECKING:
    from budcache.policy import Ladder

__all__ = ["push"]

CARD = "README.md"


def push(
    ladder: Ladder,
    name: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str | None = None,
    base_model: str | None = None,
    token: str | bool | None = None,
) -> str:
    """Publish the ladder with a card, in one commit, and return the commit's address.

    Args:
        ladder: what is published.
        name: `owner/name`; made if it is not there.
        private: whether others may not see it; of a new repository only.
        revision: a branch, made if it is not there; by default the main one.
        commit_message: what to say of the change.
        base_model: the hub id of the model, by which people find the ladder; by default what its origin names.
        token: as for `huggingface_hub`; by default the one of this machine's login. It is kept nowhere.
    """
    found = named(name, revision)
    if found is None:
        raise FileError(f"{quote(name)} is no name on the hub. Give one of the form owner/name.")
    base = base_model or base_model_of(ladder)
    files = {
        FILE: json_text(ladder.model_dump(mode="json", exclude_none=True)),
        CARD: card(ladder, found.name, base),
        PICTURE: draw(ladder),
    }
    from huggingface_hub import CommitOperationAdd

    hub = client(token)
    with hub_answers(found):
        hub.create_repo(found.name, private=private, exist_ok=True)
        if found.revision is not None:
            hub.create_branch(found.name, branch=found.revision, exist_ok=True)
        there = {file: hub.file_exists(found.name, file, revision=found.revision) for file in (CARD, FILE)}
    if there[CARD] and not there[FILE]:
        raise FileError(
            f"{found.name} has a {CARD}, but no {FILE}: it holds something else, whose card would be lost. "
            "Choose another name."
        )
    with hub_answers(found):
        adds = [CommitOperationAdd(path, text.encode()) for path, text in files.items()]
        message = commit_message or f"A ladder of {ladder.budgets_text} of {ladder.steps} calls"
        commit = hub.create_commit(found.name, adds, commit_message=message, revision=found.revision)
    return str(commit.commit_url)
