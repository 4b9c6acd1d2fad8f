"""Workers on a Ray cluster, who hold the runs of a job: the same search, fit and alignment on many machines."""

from budcache.workers.options import Workers

__all__ = ["Workers"]
