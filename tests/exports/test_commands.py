"""`budcache export` and `budcache policy`."""

from __future__ import annotations

import json

import pytest
import torch

from budcache import Ladder, Policy
from exports.policies import CALLS, policies


@pytest.fixture
def ladder(tmp_path):
    return Ladder.of([policies()["weights"], Policy(mask="1" * 12)]).save(tmp_path / "l.json")


def test_an_export_says_where_it_is_and_how_to_run_it(run_here, ladder, tmp_path):
    out = tmp_path / "pack"
    code, output, errors = run_here("export", ladder, "--budget", CALLS, "--to", "comfyui", "--out", out)
    assert (code, errors) == (0, "") and output.splitlines()[0] == str(out)
    assert len(output.splitlines()) == 2 and "custom_nodes" in output


def test_what_is_lost_is_told_beside_the_output(run_here, ladder, tmp_path):
    command = ("export", ladder, "--budget", CALLS, "--to", "sigmas", "--out", tmp_path / "s.json")
    code, output, errors = run_here(*command)
    assert code == 2 and output == "" and "34.4 dB without" in errors and "--approximate" in errors
    code, output, errors = run_here(*command, "--approximate", "--json")
    assert code == 0 and "34.4 dB without" in json.loads(output)["lost"][0]
    code, output, errors = run_here(*command, "--approximate", "--force")
    assert errors.startswith("lost: ") and output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--to", "sigmas"), "ladder of budgets"),
        (("--to", "nonsense", "--budget", CALLS), "no target"),
        (("--to", "sigmas", "--budget", CALLS, "--size", "large"), "768x1024"),
        (("--to", "sigmas", "--budget", CALLS, "--size", "0x64"), "768x1024"),
        (("--to", "cache-dit", "--for", "vllm", "--budget", CALLS), "sglang"),
    ],
)
def test_mistakes_are_told_in_a_sentence(run_here, ladder, options, words, tmp_path):
    code, output, errors = run_here("export", ladder, "--out", tmp_path / "x", *options)
    assert (code, output) == (2, "") and words in errors and errors.count("\n") == 1


def test_a_lora_and_a_dtype_are_in_the_line_that_runs_it(run_here, ladder, tmp_path):
    out = tmp_path / "whole"
    command = ("export", ladder, "--budget", CALLS, "--to", "diffusers", "--out", out, "--pipeline", "tiny-flux")
    code, output, errors = run_here(*command, "--lora", "turbo", "--lora-scale", 0.5, "--dtype", "bfloat16")
    assert (code, errors) == (0, "")
    assert 'set_adapters(["turbo"], [0.5])' in output and "dtype=torch.bfloat16" in output
    assert (out / "lora" / "turbo.safetensors").is_file()


def test_a_policy_by_hand_and_from_others(run_here, tmp_path):
    file = tmp_path / "p.json"
    code, output, _ = run_here("policy", "--steps", 28, "--computed", "0,4,8", "--out", file)
    assert code == 0 and "3" in output and Policy.load(file).mask.computed == (0, 4, 8)
    torch.save({"cache_step": [1, 2]}, tmp_path / "flux_4nfe2_h0.pt")
    code, output, errors = run_here("policy", tmp_path / "flux_4nfe2_h0.pt", "--out", file, "--json")
    assert code == 2 and output == "" and "--force" in errors
    code, output, _ = run_here("policy", tmp_path / "flux_4nfe2_h0.pt", "--out", file, "--json", "--force")
    assert json.loads(output) == {"policy": str(file), "mask": "1001", "calls": 2}
    assert Policy.load(file).reuse == "residual"
    code, _, errors = run_here("policy", "--computed", "0,4", "--out", file, "--force")
    assert code == 2 and "--steps" in errors
    code, _, errors = run_here("policy", "--steps", 28, "--computed", "0,four", "--out", file, "--force")
    assert code == 2 and "0,4,8" in errors
