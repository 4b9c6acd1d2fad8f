"""`budcache demo`: what it is all about, in a few minutes, offline."""

from __future__ import annotations
