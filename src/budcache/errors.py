"""What can go wrong, said so that the reader knows what to do next."""

from __future__ import annotations

__all__ = ["BudcacheError", "BudcacheWarning", "PipelineError", "PolicyError", "SearchError", "StorageError"]


class BudcacheError(Exception):
    """Root of all errors that budcache raises on purpose: one sentence, no traceback needed."""


class PolicyError(BudcacheError):
    """A mask, policy or ladder that cannot be: a wrong value or a wrong file."""


class PipelineError(BudcacheError):
    """A pipeline, scheduler or model that the request does not fit."""


class SearchError(BudcacheError):
    """A search that cannot be started, or cannot go on."""


class StorageError(SearchError):
    """A file in which a long job keeps its work cannot be used: damaged, in use, another job's, or the disk is full."""


class BudcacheWarning(UserWarning):
    """Something that still works but that the user may not have meant."""
