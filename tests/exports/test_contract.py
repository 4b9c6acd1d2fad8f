"""What every target keeps; a new one is under these tests as soon as it is in `TARGETS`."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import budcache
from budcache import FileError, Ladder, Policy, PolicyError
from budcache.exports import TARGETS, Target
from budcache.policy import Quality
from exports.policies import CALLS, MASK, policies

ROOT = Path(__file__).parents[2]
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
each_kind = pytest.mark.parametrize("kind", list(policies()))
each_runtime = pytest.mark.parametrize(
    ("target", "runtime"),
    [pytest.param(target, runtime, id=f"{target.name}-{runtime}") for target in TARGETS.values()
     for runtime in target.runtimes or [None]],
)  # fmt: skip


def place(target: Target, folder: Path, runtime: str | None = None) -> Path:
    return folder / ("exported.py" if target.writes_module(runtime) else "exported")


def written(path: Path) -> dict[str, str]:
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return {str(file.relative_to(path.parent)): file.read_text(encoding="utf-8") for file in files}


@each_runtime
@each_kind
def test_what_is_written_says_what_it_is_and_how_to_run_it(target, runtime, kind, tmp_path):
    options = {"approximate": True, "runtime": runtime}
    made = budcache.export(policies()[kind], target.name, place(target, tmp_path, runtime), **options)
    files = written(made.path)
    assert files and "\n" not in made.run and str(tmp_path) in made.run
    whole = "\n".join(files.values())
    if target.name != "sigmas":  # a bare list
        assert "Made by budcache" in whole and "Apache-2.0" in whole and f"{CALLS} of {len(MASK)} model calls" in whole
    assert "{{ " not in whole and "{out}" not in made.run
    again = budcache.export(policies()[kind], target.name, place(target, tmp_path / "again", runtime), **options)
    assert written(again.path) == files
    for name, text in files.items():
        if name.endswith(".json"):
            json.loads(text)


@each_runtime
@each_kind
def test_code_that_is_written_is_code_and_imports_no_budcache(target, runtime, kind, tmp_path):
    made = budcache.export(
        policies()[kind], target.name, place(target, tmp_path, runtime), approximate=True, runtime=runtime
    )
    for name, text in written(made.path).items():
        if name.endswith(".py"):
            imported = {
                alias.name if isinstance(node, ast.Import) else node.module
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
            }
            assert not [name for name in imported if name.startswith("budcache")]


HOSTILE = (
    'x"""\nimport os; open("PWNED", "w")\nZ = r"""\r\n$(touch SHELL)\u2028`id` {{ policy }} \\ ' + "{out} " + "y" * 4000
)
HEADER = re.compile(r"(?<=from a policy of )[A-Za-z0-9_./@ -]{1,120}(?=: 5 of 12 model calls)")


@each_runtime
@each_kind
def test_a_model_s_name_is_words_in_what_is_written_whatever_it_is(target, runtime, kind, tmp_path):
    """A ladder may come from anybody. A name that tries to be code changes nothing but the line that names it."""
    tidy = policies()[kind]
    hostile = tidy.model_copy(update={"origin": tidy.origin.model_copy(update={"model": HOSTILE})})
    options = {"approximate": True, "runtime": runtime}
    expected = written(budcache.export(tidy, target.name, place(target, tmp_path / "a", runtime), **options).path)
    found = written(budcache.export(hostile, target.name, place(target, tmp_path / "b", runtime), **options).path)
    assert {name: HEADER.sub("tiny-flux", text) for name, text in found.items()} == expected


@each_target
@each_kind
def test_what_is_lost_is_said_and_has_to_be_agreed_to(target, kind, tmp_path):
    policy, path = policies()[kind], place(target, tmp_path)
    made = budcache.export(policy, target.name, path, approximate=True)
    if not made.lost:
        agreed = budcache.export(policy, target.name, place(target, tmp_path / "again"))
        assert written(agreed.path) == written(made.path) and agreed.lost == ()
        return
    with pytest.raises(PolicyError, match="--approximate") as refusal:
        budcache.export(policy, target.name, place(target, tmp_path / "again"))
    assert all(clause in str(refusal.value) for clause in made.lost)
    assert not (tmp_path / "again").exists()


def test_what_each_target_loses():
    """A table, so that a change of it is seen: which kinds a target carries whole."""
    whole = {
        name: {kind for kind, policy in policies().items() if not target.lost(_task(policy))}
        for name, target in TARGETS.items()
    }
    samplers = {"plain", "levels", "weights", "rows", "features"}
    assert whole == {
        "comfyui": samplers,
        "diffusers": samplers | {"residual"},
        "cache-dit": set(),
        "magcache": {"residual"},
        "sdcpp": {"plain", "levels"},
        "mflux": samplers,
        "diffsynth": samplers,
        "sigmas": {"plain", "levels"},
    }


def _task(policy):
    from budcache.exports import Task

    return Task(policy)


def test_a_loss_is_said_in_decibels_where_both_figures_are_on_record(tmp_path):
    made = budcache.export(policies()["weights"], "sigmas", tmp_path / "a", approximate=True)
    assert made.lost == (
        "the blend of past outputs is left out (39.1 dB with it, 34.4 dB without, on held-out prompts)",
    )
    made = budcache.export(policies()["rows"], "sigmas", tmp_path / "b", approximate=True)
    assert "not on record" in made.lost[0] and "`budcache fit`" in made.lost[0]
    fitted = policies()["weights"].quality.model_copy(update={"used_to_fit": True})
    policy = policies()["weights"].model_copy(update={"quality": fitted})
    made = budcache.export(policy, "sigmas", tmp_path / "c", approximate=True)
    assert "34.4 dB without, on the prompts that it was fitted on" in made.lost[0]


def test_each_loss_has_the_figure_of_what_is_left(tmp_path):
    """Without its rows, without those for branches, without its levels; where it is another rest, none."""
    quality = Quality(psnr=40.0, psnr_plain=30.0, psnr_combined=38.5)

    def lost(kind, target, **update):
        policy = policies()[kind].model_copy(update={"quality": quality, **update})
        return " / ".join(TARGETS[target].lost(_task(policy)))

    assert "apart (40.0 dB with it, 38.5 dB without, on held-out prompts)" in lost("guided", "comfyui")
    assert "left out (40.0 dB with it, 30.0 dB without" in lost("guided", "sdcpp")
    assert "levels are left out (40.0 dB with it, 30.0 dB without" in lost("levels", "cache-dit")
    assert lost("features", "cache-dit").count("30.0 dB") == 1  # rows and levels together
    assert "left out (what that costs is not on record)" in lost("features", "sdcpp")  # its levels are kept there
    unknown = lost("guided", "comfyui", quality=None)
    assert "apart (what that costs is not on record; `budcache fit`" in unknown


@each_target
def test_another_solver_is_not_passed_off_as_euler(target, tmp_path):
    origin = policies()["plain"].origin.model_copy(
        update={"scheduler": "UniPCMultistepScheduler", "scheduler_settings": {"use_flow_sigmas": True}}
    )
    lost = {
        kind: target.lost(_task(policies()[kind].model_copy(update={"origin": origin}))) for kind in ("plain", "rows")
    }
    told = any("UniPCMultistepScheduler" in clause for clause in lost["plain"])
    assert told == ("output" in target.reuses and not target.carries_solvers)
    assert not any("UniPC" in clause for clause in lost["rows"])  # which need no solver


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.needs_levels])
def test_levels_that_mean_something_else_are_refused(name, tmp_path):
    origin = policies()["plain"].origin.model_copy(update={"scheduler": "DDIMScheduler", "scheduler_settings": {}})
    with pytest.raises(PolicyError, match=r"DDIMScheduler.*diffusers"):
        budcache.export(
            policies()["plain"].model_copy(update={"origin": origin}),
            name,
            place(TARGETS[name], tmp_path),
            approximate=True,
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": "comfy"}, "Did you mean comfyui"),
        ({"to": "sigmas", "budget": 7}, "nearest below has 5"),
        ({"to": "cache-dit", "runtime": "vllm"}, "cache-dit, sglang, xdit"),
        ({"to": "sigmas", "runtime": "vllm"}, "one runtime only. Leave --for"),
        ({"to": "diffusers", "size": (64, 128)}, "every size"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(options, words, tmp_path):
    ladder = Ladder.of([policies()["plain"]])
    with pytest.raises(PolicyError, match=words):
        budcache.export(ladder, out=tmp_path / "a", approximate=True, **options)
    assert not (tmp_path / "a").exists()


def test_a_policy_that_computes_everything_has_no_mask_for_sglang(tmp_path):
    with pytest.raises(PolicyError, match="every step"):
        budcache.export(Policy(mask="1111"), "cache-dit", tmp_path / "a", runtime="sglang", approximate=True)


def test_levels_that_do_not_end_at_zero_are_refused(tmp_path):
    policy = Policy(mask="10", sigmas=(1.0, 0.5, 0.1))
    for target in ("sigmas", "sdcpp", "comfyui"):
        with pytest.raises(PolicyError, match="end at 0"):
            budcache.export(policy, target, tmp_path / "a")


@pytest.mark.parametrize("target", ["mflux", "diffsynth", "magcache"])
@pytest.mark.parametrize("name", ["mflux.py", "diffsynth.py", "my-policy.py", "policy"])
def test_a_module_needs_a_name_that_can_be_imported(target, name, tmp_path):
    with pytest.raises(PolicyError, match=r"policy\.py"):
        budcache.export(policies()["plain"], target, tmp_path / name, approximate=True)


@each_target
def test_files_are_not_replaced_unasked(target, tmp_path):
    path = place(target, tmp_path)
    budcache.export(policies()["plain"], target.name, path, approximate=True)
    before = written(path)
    with pytest.raises(FileError, match=r"--force \(force=True in Python\)"):
        budcache.export(policies()["levels"], target.name, path, approximate=True)
    assert written(path) == before
    budcache.export(policies()["levels"], target.name, path, approximate=True, force=True)


@each_target
def test_a_second_expert_is_not_passed_over(target, tmp_path):
    """Wan 2.2: the pipeline of diffusers changes networks by itself, others run one, and caches listen to one."""
    for kind in ("plain", "residual"):
        policy = policies()[kind]
        policy = policy.model_copy(update={"origin": policy.origin.model_copy(update={"switch": 4})})
        if kind == "residual" or "output" not in target.reuses:
            with pytest.raises(PolicyError, match=r"two networks, the second from step 4 on"):
                budcache.export(policy, target.name, place(target, tmp_path / kind), approximate=True)
        else:
            lost = budcache.export(policy, target.name, place(target, tmp_path / kind), approximate=True).lost
            assert any("at step 4" in clause for clause in lost) == (target.name != "diffusers")


def test_a_workflow_of_another_model_is_not_flux_s(tmp_path):
    known = {"pipeline": "WanPipeline", "guidance": 5.0, "frames": 81, "width": 832, "height": 480}
    for kind in ("plain", "rows"):
        policy = policies()[kind]
        policy = policy.model_copy(update={"origin": policy.origin.model_copy(update=known)})
        made = budcache.export(policy, "comfyui", tmp_path / kind)
        nodes = json.loads((made.path / "example_workflows" / "policy-api.json").read_text())
        kinds = {node["class_type"] for node in nodes.values()}
        assert not kinds & {"FluxGuidance", "BasicGuider", "DualCLIPLoader", "EmptySD3LatentImage"}
        assert nodes["guider"]["class_type"] == "CFGGuider" and nodes["guider"]["inputs"]["cfg"] == 5.0
        assert nodes["guider"]["inputs"]["negative"] == ["negative", 0]
        assert nodes["latent"]["inputs"] == {"width": 832, "height": 480, "length": 81, "batch_size": 1}
        assert "the loaders that WanPipeline needs" in made.run


def test_a_workflow_is_for_the_size_that_was_asked_for(tmp_path):
    policy = policies()["plain"]
    policy = policy.model_copy(update={"origin": policy.origin.model_copy(update={"scheduler_settings": {}})})
    made = budcache.export(policy, "comfyui", tmp_path / "a", size=(128, 96))
    nodes = json.loads((made.path / "example_workflows" / "policy-api.json").read_text())
    assert nodes["latent"]["inputs"] == {"width": 96, "height": 128, "batch_size": 1}


@pytest.mark.parametrize("said", [{"true_guidance": 4.0}, {"ranges": {"true_guidance": (3.0, 5.0)}}])
def test_flux_with_a_negative_prompt_is_guided_between_both(said, tmp_path):
    policy = policies()["rows"]
    policy = policy.model_copy(update={"origin": policy.origin.model_copy(update=said)})
    made = budcache.export(policy, "comfyui", tmp_path / "a")
    nodes = json.loads((made.path / "example_workflows" / "policy-api.json").read_text())
    assert nodes["guider"]["class_type"] == "CFGGuider" and nodes["guider"]["inputs"]["cfg"] == 4.0
    assert nodes["negative_guidance"]["inputs"] == {"conditioning": ["negative", 0], "guidance": 3.5}


def test_a_policy_of_another_model_is_not_written_into_a_pipeline(tmp_path):
    policy = policies()["plain"]
    policy = policy.model_copy(
        update={"origin": policy.origin.model_copy(update={"denoiser": "FluxTransformer2DModel"})}
    )
    with pytest.raises(PolicyError, match="FluxTransformer2DModel, which tiny-wan does not have"):
        budcache.export(policy, "diffusers", tmp_path / "a", pipeline="tiny-wan")
    with pytest.raises(PolicyError, match="WanPipeline takes no sigmas="):
        budcache.export(Policy(mask="1010"), "sigmas", tmp_path / "a", pipeline="tiny-wan")
    assert not (tmp_path / "a").exists()


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    with pytest.raises(PolicyError, match=r"--approximate.* Besides, .*--pipeline"):
        budcache.export(Policy(mask="1010", reuse="residual"), "comfyui", tmp_path / "a")


def test_folders_are_not_written_into_unasked(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileError, match="not empty"):
        budcache.export(policies()["rows"], "comfyui", tmp_path / "own")
    with pytest.raises(FileError, match="is a file"):
        budcache.export(policies()["rows"], "comfyui", tmp_path / "file", force=True)
    budcache.export(policies()["rows"], "comfyui", tmp_path / "own", force=True)
    assert (tmp_path / "own" / "notes.txt").read_text() == "mine" and (tmp_path / "own" / "__init__.py").exists()


@each_target
def test_the_documentation_and_the_command_name_every_target(target):
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    assert f"`{target.name}`" in page
    assert all(f"--for {runtime}" in page for runtime in target.runtimes[1:])
    assert f"\n    {target.name} " in (ROOT / "src/budcache/cli/export.py").read_text(encoding="utf-8")
