"""What can go wrong, said so that the reader knows what to do next.

Every error is a `BudcacheError`, and where Python has a kind for it also that: wrong values and contents are
`ValueError`s, files that cannot be read or written are `OSError`s. Code that expects the pipeline's own `ValueError`s
therefore lets a `BudcacheError` pass first.
"""

from __future__ import annotations

__all__ = [
    "BudcacheError",
    "BudcacheWarning",
    "FileError",
    "JournalError",
    "PipelineError",
    "PolicyError",
    "RecordError",
    "SearchError",
    "WorkerError",
]


class BudcacheError(Exception):
    """Root of all errors that budcache raises on purpose: one sentence, no traceback needed."""


class PolicyError(BudcacheError, ValueError):
    """A mask, policy or ladder that cannot be: a wrong value, or a file with wrong contents."""


class PipelineError(BudcacheError):
    """A pipeline, scheduler or model that the request does not fit."""


class SearchError(BudcacheError, ValueError):
    """A search that cannot be started, or cannot go on."""


class RecordError(SearchError):
    """A record of full runs that cannot be used: damaged, empty, or of another pipeline."""


class WorkerError(SearchError):
    """Workers that could not be started, or that died too often."""


class FileError(BudcacheError, OSError):
    """A file or folder that cannot be read, written or shared."""


class JournalError(FileError, SearchError):
    """A file in which a long job keeps its work cannot be used: damaged, in use, or another job's."""


class BudcacheWarning(UserWarning):
    """Something that still works but that the user may not have meant."""
