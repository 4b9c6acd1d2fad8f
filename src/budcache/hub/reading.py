"""Names of the hub, and the one file that is read from there: bounded in size, then validated as any other file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from budcache.errors import BudcacheError, FileError, PolicyError
from budcache.storage.files import MAX_FILE_BYTES
from budcache.wording import quote

__all__ = ["FILE", "Repository", "client", "download", "hub_answers", "local", "named"]

FILE = "ladder.json"  # the same in every repository, so nothing that is downloaded chooses where it is written
SECONDS = 10  # to wait for the hub

_PART = r"[A-Za-z0-9_](?:[\w.-]{0,95}[\w-])?"
_REVISION = r"\w[\w./-]{0,199}"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@({_REVISION}))?", re.ASCII)
_FILES = (".json", ".jsonl", ".record", ".txt", ".yaml", ".yml", ".pt", ".safetensors")  # endings of paths, not names


class Repository(NamedTuple):
    """A repository on the hub, and which state of it: a branch, a tag or a commit; None is the newest."""

    name: str
    revision: str | None = None


def named(source: str | os.PathLike[str], revision: str | None = None) -> Repository | None:
    """The repository that a text such as `owner/name` or `owner/name@revision` means; None if it can be none."""
    found = _NAME.fullmatch(Path(source).as_posix()) if not str(source).startswith((".", "~")) else None
    if found is None or Path(found[1]).suffix in _FILES:
        return None
    wanted = revision if revision is not None else found[2]
    # It becomes part of a path in the cache.
    if wanted is not None and (not re.fullmatch(_REVISION, wanted, re.ASCII) or ".." in wanted):
        raise PolicyError(f"{quote(wanted)} is no revision. Give a branch, a tag or a commit of {found[1]}.")
    return Repository(found[1], wanted)


def local(source: str | os.PathLike[str]) -> Path | None:
    """The file on this machine that a path or a folder stands for, also if it is not there; None if it is the hub's.

    What is on this machine comes before a repository of the same name.
    """
    path = Path(source)
    try:
        if (path / FILE).is_file():
            return path / FILE
        if path.exists():
            return path
    except (OSError, ValueError):  # too long, or with a zero byte: whoever reads it says so
        return path
    return path if named(source) is None else None


def download(
    source: str | os.PathLike[str],
    *,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    token: str | bool | None = None,
) -> Path:
    """The file of a repository on the hub, in the cache; taken from there if nothing can be reached."""
    from huggingface_hub import hf_hub_download

    import budcache

    found = named(source, revision)
    assert found is not None
    # With no network, what is in the cache is all there is: huggingface_hub would try for half a minute.
    local_files_only = local_files_only or not _answers_well(found, token)
    with hub_answers(found), _without_bars():
        return Path(
            hf_hub_download(
                found.name,
                FILE,
                revision=found.revision,
                cache_dir=cache_dir,
                local_files_only=local_files_only,
                token=token,
                library_name="budcache",
                library_version=budcache.__version__,
            )
        )


def _answers_well(found: Repository, token: str | bool | None) -> bool:
    """Whether the hub answers at all; what cannot be a ladder is refused before it is downloaded."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        about = get_hf_file_metadata(
            hf_hub_url(found.name, FILE, revision=found.revision), token=token, timeout=SECONDS
        )
    except Exception as error:  # what it refuses is told at the download, which also knows the cache
        return getattr(error, "response", None) is not None
    if about.size is None or about.size > MAX_FILE_BYTES:
        size = "of unknown size" if about.size is None else f"of {about.size} bytes"
        raise PolicyError(
            f"{found.name} has a {FILE} {size}; a ladder has at most {MAX_FILE_BYTES}. Is this the right repository?"
        )
    # Both become names of files in the cache.
    if not all(re.fullmatch(r"[\w-]{1,128}", str(name), re.ASCII) for name in (about.etag, about.commit_hash)):
        raise PolicyError(f"what was answered for {found.name} is not the hub's. Check HF_ENDPOINT and your proxy.")
    return True


def client(token: str | bool | None) -> Any:
    """The hub's interface, which says who is calling."""
    from huggingface_hub import HfApi

    import budcache

    return HfApi(token=token, library_name="budcache", library_version=budcache.__version__)


@contextmanager
def _without_bars() -> Iterator[None]:
    """A file of a few kilobytes needs no progress bar."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextmanager
def hub_answers(found: Repository) -> Iterator[None]:
    """What the hub refuses, as a sentence. Only calls of huggingface_hub belong inside.

    Nothing of a foreign error is repeated: it may hold the headers that were sent, and the token is one of them.
    """
    try:
        yield
    except BudcacheError:
        raise
    except Exception as error:
        raise _sentence(found, error) from None


def _sentence(found: Repository, error: Exception) -> FileError:
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        LocalTokenNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name, status = found.name, getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, GatedRepoError):
        text = f"{name} is gated: ask for access on its page, then log in with `hf auth login`."
    elif isinstance(error, LocalTokenNotFoundError):
        text = "there is no token on this machine: log in with `hf auth login`, or set HF_TOKEN."
    elif isinstance(error, RepositoryNotFoundError):
        text = (
            f"the hub has no {name} that you may see. Check the spelling; if it is private, log in with "
            "`hf auth login` or set HF_TOKEN."
        )
    elif isinstance(error, RevisionNotFoundError):
        text = f"{name} has no revision {quote(found.revision)}. Leave it out for the newest, or check its branches."
    elif isinstance(error, LocalEntryNotFoundError):
        text = f"{name} is not in the cache, and the hub could not be asked. Check the network, and HF_HUB_OFFLINE."
    elif isinstance(error, EntryNotFoundError):
        text = f"{name} has no {FILE}, so it holds no ladder. Is this the right repository?"
    elif status == 401:
        text = "the hub wants a token that it knows. Log in with `hf auth login`, or check HF_TOKEN."
    elif status == 403:
        text = f"this token may not write to {name}. Use one with write access, and a name under your own account."
    elif isinstance(error, HfHubHTTPError) and status is not None:
        text = f"the hub answered {status} for {name}. Try again later."
    elif isinstance(error, ValueError):
        text = f"the hub takes no repository {quote(name)}, or its answer cannot be read. Check the name as owner/name."
    else:
        text = f"the hub cannot be reached for {name} ({type(error).__name__}). Check the network, and HF_ENDPOINT."
    return FileError(text)
