"""A studio of tiny-flux with a runner that has started, and what it draws in a few steps."""

from __future__ import annotations

import os
import time

import pytest

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # as the command does, before Gradio is imported
STEPS = 6  # of the full run: these tests are of the studio, not of the model


@pytest.fixture
def make(tmp_path):
    """Studios on one project folder, one after the other; each is closed at the end."""
    from budcache import models
    from budcache.studio.studio import Studio

    made = []

    def studio(load=None, model="tiny-flux", folder=tmp_path / "project", start=True, **options):
        load = load or (lambda: models.load(model))
        made.append(Studio(model, load, folder, **{"steps": STEPS, **options}))
        if start:
            made[-1].runner.start()
        return made[-1]

    yield studio
    for each in made:
        each.close()


@pytest.fixture
def until():
    """Wait until something holds; that is soon, but for a machine that is very busy."""

    def wait(holds, seconds=240):
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "it never came about"
            time.sleep(0.02)

    return wait
