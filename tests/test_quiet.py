"""What the libraries below print when a process starts, and what of it is left out."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def printed(program):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "import budcache; budcache.load('tiny-flux')",
        "import budcache; from diffusers import FluxPipeline; budcache.applied",
    ],
)
def test_a_start_is_quiet(program):
    assert printed(program) == ""


@pytest.mark.slow
def test_what_was_imported_before_budcache_has_been_commented_on_already():
    """Only what comes after the import of budcache can be left out."""
    first = "from diffusers import FluxPipeline"
    assert printed(f"{first}; import budcache; budcache.applied") == printed(first)


@pytest.mark.slow
def test_what_a_user_imports_is_commented_on_as_ever():
    program = (
        "import logging; from transformers import CLIPImageProcessor; logging.getLogger('transformers').warning('mine')"
    )
    with_us = printed(f"import budcache; {program}")
    assert with_us == printed(program)
    assert "mine" in with_us


def test_progress_bars_are_as_they_were():
    from diffusers.utils import logging as of_diffusers
    from transformers.utils import logging as of_transformers

    import budcache

    for log in (of_diffusers, of_transformers):
        before = log.is_progress_bar_enabled()
        budcache.load("tiny-flux")
        assert log.is_progress_bar_enabled() == before
        (log.disable_progress_bar if before else log.enable_progress_bar)()
        try:
            budcache.load("tiny-flux")
            assert log.is_progress_bar_enabled() != before
        finally:
            (log.enable_progress_bar if before else log.disable_progress_bar)()
