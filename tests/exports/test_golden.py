"""Exports as files, so that every change of them is seen. `python tests/exports/test_golden.py` writes them anew."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import budcache
from exports.policies import policies

GOLDEN = Path(__file__).parents[1] / "golden" / "exports"
EXPORTS = {
    "comfyui-rows": ("features", "comfyui", None),
    "comfyui-plain": ("levels", "comfyui", None),
    "diffusers": ("weights", "diffusers", None),
    "diffusers-residual": ("residual", "diffusers", None),
    "cache-dit.yaml": ("residual", "cache-dit", None),
    "cache-dit-guided.yaml": ("guided", "cache-dit", None),
    "sglang": ("residual", "cache-dit", "sglang"),
    "xdit.txt": ("residual", "cache-dit", "xdit"),
    "magcache_ratios.py": ("residual", "magcache", "diffusers"),
    "vllm-omni.txt": ("residual", "magcache", "vllm-omni"),
    "lightx2v.json": ("residual", "magcache", "lightx2v"),
    "sdcpp.txt": ("levels", "sdcpp", None),
    "mflux_policy.py": ("features", "mflux", None),
    "diffsynth_policy.py": ("features", "diffsynth", None),
    "sigmas.json": ("levels", "sigmas", None),
}


def exported(name: str, folder: Path) -> dict[str, str]:
    kind, target, runtime = EXPORTS[name]
    made = budcache.export(policies()[kind], target, folder / name, runtime=runtime, approximate=True)
    files = [made.path] if made.path.is_file() else [each for each in made.path.rglob("*") if each.is_file()]
    texts = {str(file.relative_to(folder)): file.read_text(encoding="utf-8") for file in files}
    # Python that is written ends in .txt here, so that nobody formats it.
    return {
        f"{path}.txt" if path.endswith(".py") else path: text.replace(budcache.__version__, "VERSION")
        for path, text in texts.items()
    }


@pytest.mark.parametrize("name", EXPORTS)
def test_exports_are_as_they_were(name, tmp_path):
    found = exported(name, tmp_path)
    assert found == {path: (GOLDEN / path).read_text(encoding="utf-8") for path in found}
    assert {path.split("/")[0] for path in found} <= {path.name for path in GOLDEN.iterdir()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name in EXPORTS:
            for path, text in exported(name, Path(folder)).items():
                (GOLDEN / path).parent.mkdir(parents=True, exist_ok=True)
                (GOLDEN / path).write_text(text, encoding="utf-8")
