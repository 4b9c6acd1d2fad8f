"""ComfyUI's own server: `comfyui_server.py FOLDER ARGUMENTS...`, with the folder of its main.py."""

from __future__ import annotations

import os
import runpy
import sys

import placeholders  # noqa: F401

folder = sys.argv[1]
os.chdir(folder)
sys.path.insert(0, folder)
sys.argv = ["main.py", *sys.argv[2:]]
runpy.run_path("main.py", run_name="__main__")
