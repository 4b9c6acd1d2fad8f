"""Ladders to the hub and back, against a hub on loopback: real processes, real requests, nothing replaced."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml
from hub_server import Hub
from hypothesis import given
from hypothesis import strategies as st
from loras import random_lora

from budcache import FileError, Ladder, Mask, Origin, Policy, PolicyError, Quality
from budcache.hub import finding
from budcache.hub.card import card
from budcache.hub.picture import draw
from budcache.hub.published import Published
from budcache.hub.reading import Repository, local, named
from budcache.storage.files import MAX_FILE_BYTES

TOKEN = "hf_ThisTokenIsNeverWrittenAnywhere"
FLUX = "black-forest-labs/FLUX.1-dev"


def ladder(steps=28, budgets=(4, 6, 9), **origin):
    known = {"model": FLUX, "pipeline": "FluxPipeline", "weights": "0123456789abcdef", "guidance": 3.5, "prompts": 32}
    quality = [Quality(psnr=20.0 + b, psnr_error=0.5, samples=8, used_to_choose=True) for b in budgets]
    return Ladder.of(
        Policy(mask=Mask.uniform(steps, budget), origin=Origin(**{**known, **origin}), quality=good)
        for budget, good in zip(budgets, quality, strict=True)
    )


class World:
    """A hub, a home and a folder of its own; all that clients say is kept."""

    def __init__(self, folder):
        self.hub, self.home, self.folder, self.said = Hub(), folder / "home", folder / "work", []
        self.folder.mkdir()
        self.hub.users[TOKEN] = "me"

    def run(self, *command, **environment):
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
        outside |= {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.home), "NO_COLOR": "1", "COLUMNS": "160"}
        done = subprocess.run(
            list(map(str, command)),
            env=outside | environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=200,
        )
        self.said += [done.stdout, done.stderr]
        return done

    def python(self, text, **environment):
        """What a program prints last, as JSON; it has a file `given.json`, and `told` for sentences of refusals."""
        lead = """
            import json, budcache
            from budcache import Ladder
            given = Ladder.load("given.json")
            def told(act):
                try:
                    act()
                except budcache.BudcacheError as error:
                    return f"{type(error).__name__}: {error}"
        """
        done = self.run(sys.executable, "-c", textwrap.dedent(lead) + textwrap.dedent(text), **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def commands(self, *lines, **environment):
        """What several commands answer, one after the other in one process: exit code, output and errors of each."""
        program = """
            import contextlib, io, json, sys
            from budcache.cli import main
            done = []
            for line in json.loads(sys.argv[1]):
                sys.argv = ["budcache", *line]
                with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
                    try:
                        main()
                    except SystemExit as end:
                        done.append((end.code, out.getvalue(), err.getvalue()))
            print(json.dumps(done))
        """
        done = self.run(sys.executable, "-c", textwrap.dedent(program), json.dumps(lines), **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def asked_since(self, before):
        """What was asked for our sake; what huggingface_hub asks when it is imported is its own."""
        return [line for line in self.hub.asked[before:] if "/resolve/" in line or "/api/models" in line]

    def files(self, name="me/flux", branch="main"):
        repo = self.hub.repos[name]
        return repo.commits[repo.branches[branch]]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A hub on which a program has published a ladder, in several ways."""
    made = World(tmp_path_factory.mktemp("hub"))
    ladder().save(made.folder / "given.json")
    made.hub.put("me/model", {"README.md": b"# a model of mine\n", "model_index.json": b"{}"})
    made.published = made.python(f"""
        token = {TOKEN!r}
        urls = [given.push_to_hub("me/flux", token=token)]
        first = urls[0].rpartition("/")[2]
        urls.append(given.push_to_hub("me/secret", private=True, token=token))
        small = Ladder.of([given[4]])
        urls.append(small.push_to_hub("me/flux", revision="small", commit_message="only four", token=token))
        again = given.push_to_hub("me/flux", token=token)
        read = {{
            "same": Ladder.from_pretrained("me/flux") == given,
            "revision": Ladder.from_pretrained("me/flux", revision="small").budgets,
            "at": Ladder.load("me/flux@small").budgets,
            "commit": Ladder.from_pretrained("me/flux", revision=first).budgets,
            "private": Ladder.from_pretrained("me/secret", token=token).budgets,
            "cache": Ladder.from_pretrained("me/flux", cache_dir="elsewhere").budgets,
            "over a model": told(lambda: given.push_to_hub("me/model", token=token)),
        }}
        print(json.dumps({{"urls": urls, **read}}))
    """)
    yield made
    made.hub.close()


def test_a_ladder_comes_back_as_it_was(world):
    found = world.published
    assert found["same"] is True
    assert found["revision"] == found["at"] == [4]
    assert found["commit"] == found["private"] == found["cache"] == [4, 6, 9]
    assert (world.folder / "elsewhere" / "models--me--flux").is_dir()
    assert all(re.fullmatch(rf"{world.hub.url}/me/\w+/commit/[0-9a-f]{{40}}", url) for url in found["urls"])


def test_what_is_published(world):
    files = world.files()
    assert {*files} - {".gitattributes"} == {"ladder.json", "README.md", "ladder.svg"}
    assert "only four" in world.hub.repos["me/flux"].messages
    assert [repo.private for repo in (world.hub.repos["me/flux"], world.hub.repos["me/secret"])] == [False, True]
    assert files["ladder.json"] == (world.folder / "given.json").read_bytes()


def test_the_card_of_something_else_is_not_lost(world):
    assert "me/model has a README.md, but no ladder.json" in world.published["over a model"]
    assert world.files("me/model")["README.md"] == b"# a model of mine\n"


def test_offline(world):
    read = 'print(json.dumps([Ladder.from_pretrained("me/flux"{}).budgets, told(lambda: Ladder.load("me/nowhere"{}))]))'
    gone = {"HF_ENDPOINT": "http://127.0.0.1:9"}  # nobody listens at the discard port
    for more, environment in (("", gone), ("", {"HF_HUB_OFFLINE": "1"})):
        budgets, refused = world.python(read.format(more, more), **environment)
        assert budgets == [4, 6, 9]
        assert refused.startswith("FileError: me/nowhere is not in the cache")
    before = len(world.hub.asked)
    assert world.python('print(json.dumps(Ladder.from_pretrained("me/flux", local_files_only=True).budgets))')
    assert world.asked_since(before) == []


def test_every_refusal_is_a_sentence(world):
    world.hub.put("me/empty", {"README.md": b"# nothing\n"})
    world.hub.put("me/hidden", {"ladder.json": world.files()["ladder.json"]}, private=True)
    found = world.python(f"""
        print(json.dumps({{
            "missing": told(lambda: Ladder.from_pretrained("me/nowhere")),
            "private": told(lambda: Ladder.from_pretrained("me/hidden")),
            "wrong token": told(lambda: Ladder.from_pretrained("me/nowhere", token="hf_wrong")),
            "no ladder": told(lambda: Ladder.from_pretrained("me/empty")),
            "revision": told(lambda: Ladder.from_pretrained("me/flux", revision="v9")),
            "outside": told(lambda: Ladder.from_pretrained("me/flux", revision="../../v9")),
            "push without": told(lambda: given.push_to_hub("me/new")),
            "push wrong": told(lambda: given.push_to_hub("me/new", token="hf_wrong")),
            "push elsewhere": told(lambda: given.push_to_hub("you/new", token={TOKEN!r})),
            "push nowhere": told(lambda: given.push_to_hub("new")),
            "broken token": told(lambda: given.push_to_hub("me/new", token={TOKEN!r} + chr(10))),
        }}))
    """)
    says = {
        "missing": "the hub has no me/nowhere that you may see",
        "private": "the hub has no me/hidden that you may see",
        "wrong token": "the hub wants a token that it knows",
        "no ladder": "me/empty has no ladder.json",
        "revision": "me/flux has no revision 'v9'",
        "outside": "'../../v9' is no revision",
        "push without": "the hub wants a token that it knows",
        "push wrong": "the hub wants a token that it knows",
        "push elsewhere": "this token may not write to you/new",
        "push nowhere": "'new' is no name on the hub",
        "broken token": "the hub",
    }
    for case, text in says.items():
        assert text in (found[case] or ""), case
        assert found[case][-1] in ".?" and "\n" not in found[case] and "hf_" not in found[case]
    assert "me/new" not in world.hub.repos


def test_what_is_downloaded_is_as_hostile_as_any_file(world):
    good = json.loads(world.files()["ladder.json"])
    bad = {
        "field": json.dumps(good | {"run": "import os"}).encode(),
        "version": json.dumps(good | {"version": 99}).encode(),
        "number": json.dumps(good).replace("0.5", "NaN").encode(),
        "text": b"not JSON",
        "pickle": pickle.dumps(good),
        "deep": b"[" * 100_000,
        "large": b" " * (MAX_FILE_BYTES + 1),
        "etag": json.dumps(good).encode(),
        "commit": json.dumps(good).encode(),
    }
    for name, content in bad.items():
        world.hub.put(f"you/{name}", {"ladder.json": content})
    world.hub.stated["you/etag"] = {"ETag": '"../../../../evil"'}
    world.hub.stated["you/commit"] = {"X-Repo-Commit": "../../../evil"}
    before = len(world.hub.asked)
    names = [f"you/{name}" for name in bad]
    found = world.python(f"print(json.dumps({{n: told(lambda: Ladder.from_pretrained(n)) for n in {names}}}))")
    for name in names:
        assert (found[name] or "").startswith("PolicyError: "), f"{name}: {found[name]}"
        assert name in found[name] and str(world.home) not in found[name] and "\n" not in found[name]
    assert "GET /you/large/resolve/main/ladder.json" not in world.hub.asked[before:], "refused before the download"
    assert not list(world.home.parent.rglob("*evil*"))


def test_find_by_name_is_near_and_survives_odd_cards(world):
    for name, made in {
        "me/video": ladder(model="Wan-AI/Wan2.1-T2V-1.3B-Diffusers"),
        "me/fifty": ladder(steps=50),
        "me/small": ladder(height=512, width=512),
        "me/strong": ladder(height=1024, width=1024, guidance=None, ranges={"guidance": (5.0, 7.0)}),
    }.items():
        base = made.rungs[0].origin.model
        world.hub.put(name, {"README.md": card(made, name, base).encode(), "ladder.json": b"{}"})
    odd = {"steps": 28, "budgets": [4]}
    world.hub.extra = [
        "text",
        {"id": "evil/a", "cardData": {"self": 1, "ignore_metadata_errors": 2, "budcache": odd | {"steps": "28"}}},
        {"id": "evil/b", "cardData": {"budcache": odd | {"budgets": [4] * 5000}}},
        {"id": "../evil", "cardData": {"budcache": odd}},
        {"id": "evil/c", "cardData": {"budcache": odd | {"psnr": [1.0, 2.0]}}},
        {"id": "evil/d", "tags": 7, "cardData": {"budcache": odd | {"height": [True, {}]}}},
        {"id": 5, "cardData": {"budcache": odd}},
    ]
    before = len(world.hub.asked)
    found = world.python(f"""
        wanted = dict(steps=28, height=1024, width=1024, guidance=3.5)
        seen = budcache.find({FLUX!r}, **wanted)
        print(json.dumps([(each.name, each.same_weights, each.says.steps, each.says.psnr[0]) for each in seen]))
    """)
    world.hub.extra = []
    assert [name for name, *_ in found] == ["me/strong", "me/flux", "me/small", "me/fifty"]
    assert found[0][1:] == [False, 28, 24.0]
    assert world.asked_since(before) == ["GET /api/models"], "a listing, and nothing else"


@pytest.mark.slow
def test_find_by_weights_and_the_commands(world):
    """A pipeline is recognised whatever its name; every command takes names of the hub."""
    import budcache
    from budcache.pipeline.origin import describe

    pipe = budcache.load("tiny-flux")
    weights = describe(pipe).weights
    random_lora(world.folder / "lora.safetensors", pipe)
    ladder(model="some-folder", weights=weights).save(world.folder / "tiny.json")
    pushed, listed, with_lora, shown, drawn, exported, none, missing = world.commands(
        ["push", "tiny.json", "me/tiny", "--base-model", "me/tiny-flux"],
        ["find", "tiny-flux", "--json"],
        ["find", "tiny-flux", "--lora", "lora.safetensors", "--json"],
        ["show", "me/tiny"],
        ["generate", "tiny-flux", "-p", "apple", "--policy", "me/tiny", "-b", "4", "-o", "apple.png", "--json"],
        ["export", "me/tiny", "--to", "sigmas", "-b", "4", "-o", "levels.json", "--approximate"],
        ["find", "nobody/nothing"],
        ["show", "me/nowhere"],
        HF_TOKEN=TOKEN,
    )
    assert pushed[0] == 0 and f"{world.hub.url}/me/tiny/commit/" in pushed[1], pushed
    found = [(each["name"], each["same_weights"], each["base_model"]) for each in json.loads(listed[1])]
    assert found == [("me/tiny", True, "me/tiny-flux")]
    assert [each["same_weights"] for each in json.loads(with_lora[1])] == [False]
    assert "ladder of 3 rungs, 28 steps" in shown[1] and not shown[2]
    assert json.loads(drawn[1])["samples"][0]["calls"] == 4
    assert "no file" not in exported[2] and "the hub" not in exported[2]
    assert "the hub has no ladder for nobody/nothing yet" in none[1]
    assert missing[0] == 2 and missing[2].startswith("budcache: the hub has no me/nowhere")


@pytest.mark.slow
def test_a_ladder_of_the_hub_is_read_once_and_leaves_nothing_where_one_works(world):
    """What is checked is what is served, whoever pushes meanwhile; and a measurement has no file to lie beside."""
    before, there = len(world.hub.asked), set(world.folder.iterdir())
    options = ["-p", "apple", "--policy", "me/flux", "--seconds", "600", "--height", "32", "--width", "32", "--json"]
    (drawn,) = world.commands(["generate", "tiny-flux", *options, "-o", "timed.png"])
    assert drawn[0] == 0 and "fits into 600 s" in json.loads(drawn[1])["reason"], drawn
    assert set(world.folder.iterdir()) - there == {world.folder / "timed.png"}
    # Ours before a download, and that of huggingface_hub, which finds it in the cache.
    assert world.asked_since(before) == ["HEAD /me/flux/resolve/main/ladder.json"] * 2


def test_the_token_is_nowhere(world):
    """Runs last of those that use it: not in what was said, not in a file here, not in a file there."""
    assert TOKEN not in "".join(world.said)
    here = [path for path in world.home.parent.rglob("*") if path.is_file()]
    assert any(path.name == "given.json" for path in here) and any("blobs" in path.parts for path in here)
    assert not [path for path in here if TOKEN.encode() in path.read_bytes()]
    there = [files for repo in world.hub.repos.values() for files in repo.commits.values()]
    assert not [files for files in there if TOKEN.encode() in b"".join(files.values())]


# Without a hub


def test_a_card_can_be_searched_read_and_run():
    made = ladder(height=768, width=1024, guidance=None, ranges={"guidance": (1.5, 7.0)}, strategy="paths")
    text = card(made, "me/flux", FLUX)
    head = yaml.safe_load(text.split("---")[1])
    assert head["tags"] == ["budcache", "diffusers", "budcache-0123456789abcdef"]
    assert head["base_model"] == FLUX and head["library_name"] == "budcache"
    assert head["budcache"]["guidance"] == [1.5, 7.0] and head["budcache"]["height"] == 768
    assert Published.read(head["budcache"]) == Published.of(made)
    code = re.search(r"```python\n(.*?)```", text, re.S)[1]
    compile(code, "card", "exec")
    assert 'budcache.applied(pipe, "me/flux", budget=6)' in code and f'FluxPipeline.from_pretrained("{FLUX}")' in code
    for rung in made:
        assert f"| {rung.budget} |" in text and rung.quality.text in text
    assert "| calibration prompts | 32 |" in text and "expect a little less" in text


def test_a_card_is_no_place_for_tricks():
    made = ladder(model="<script>alert(1)</script>\n---\n[x](javascript:y) " + "long " * 700, pipeline="x; import os")
    text = card(made, "me/flux")
    assert "<script" not in text and "](javascript" not in text and "import os" not in text.split("```")[1]
    assert "base_model" not in yaml.safe_load(text.split("---")[1])
    assert max(map(len, text.splitlines())) < 1500


@pytest.mark.parametrize("made", [ladder(), ladder(budgets=(5,)), ladder(steps=200, budgets=range(1, 90))])
def test_the_picture_is_a_picture_of_its_own(made):
    text = draw(made)
    tree = ElementTree.fromstring(text)
    assert tree.tag.endswith("svg") and not re.search(r"href|<script|url\(", text)
    cells = [path.get("d").count("M") for path in tree.iter() if path.get("class") == "on"]
    assert len(cells) == min(len(made), 24) and set(cells) <= set(made.budgets)
    assert {cells[0], cells[-1]} == {made.budgets[0], made.budgets[-1]}
    curve = [path for path in tree.iter() if path.get("class") == "line"]
    assert len(curve) == (len(made) > 1)


def test_figures_of_fitted_samples_are_bounds_wherever_they_stand():
    """As `Quality.text` says it: new prompts do worse, and a standard error says nothing of them."""
    fitted = Quality(psnr=45.123456789, psnr_error=0.3, samples=4, used_to_fit=True)
    made = Ladder.of(rung.model_copy(update={"quality": fitted}) for rung in ladder())
    picture, said = draw(made), Published.of(made)
    assert "&lt; 45.1" in picture and "±" not in picture and "standard error" not in picture
    assert 'class="band"' not in picture or "new ones do worse" in picture
    assert said.used_to_fit and said.quality == "< 45.1" and said.psnr == (45.12,) * 3
    assert Published.read(said.data()) == said
    kept_out = Published.of(ladder())
    assert kept_out.quality == "24.0 to 29.0" and "used_to_fit" not in kept_out.data()
    assert "24.0 ± 0.5" in draw(ladder()) and "with its standard error" in draw(ladder())


def test_a_ladder_made_with_a_lora_is_for_that_lora():
    """The weights under it are the same, but not what is at work."""
    lora = ("turbo (0123abcd) at 1",)
    made = {"me/plain": ladder(), "me/lora": ladder(adapters=lora)}
    entries = {
        name: {"id": name, "tags": ["budcache-0123456789abcdef"], "cardData": {"budcache": Published.of(each).data()}}
        for name, each in made.items()
    }

    def found(adapters):
        read = [finding.read_entry(entry, "0123456789abcdef", adapters) for entry in entries.values()]
        wanted = dict.fromkeys(("height", "width", "frames", "guidance"))
        ranked = sorted(read, key=lambda each: finding._distance(each, 28, wanted))
        return [(each.name, each.same_weights) for each in ranked]

    assert found(()) == [("me/plain", True), ("me/lora", False)]
    assert found(lora) == [("me/lora", True), ("me/plain", False)]
    read = finding.read_entry(entries["me/lora"], None, ())
    assert "with turbo (0123abcd) at 1" in str(read) and not read.same_adapters


def test_an_unmeasured_ladder_has_strips_alone():
    made = Ladder.of([Policy(mask="1010"), Policy(mask="1011")])
    assert 'class="line"' not in draw(made) and draw(made).count('class="on"') == 2
    assert Published.read(Published.of(made).data()) == Published.of(made)
    assert "not measured" in card(made, "me/x")


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("me/flux", Repository("me/flux")),
        ("me/flux.1-dev@v1.0", Repository("me/flux.1-dev", "v1.0")),
        ("me/flux@refs/pr/1", Repository("me/flux", "refs/pr/1")),
        *((text, None) for text in ("flux", "./me/flux", "../flux", "/me/flux", "a/b/c", "me/flux.json", "me/", "~/x")),
        *((text, None) for text in ("me/x.ledger.jsonl", "me/..", "../..", "me/flux@", "me/fl ux", "", "me\0/x")),
    ],
)
def test_names_of_the_hub(text, means):
    assert named(text) == means


@given(st.text(max_size=40), st.text(max_size=20))
def test_no_name_leads_out_of_the_cache(text, revision):
    try:
        found = named(text, revision)
    except PolicyError as error:
        assert str(error).endswith(".")
        return
    if found is not None:
        assert found.name.count("/") == 1 and ".." not in found.name.split("/")
        assert found.revision and ".." not in found.revision and not found.revision.startswith("/")


def test_what_is_here_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ladder().save("me/flux/ladder.json")
    assert local("me/flux") == Path("me/flux/ladder.json")
    assert Ladder.from_pretrained("me/flux") == Ladder.load("me/flux/ladder.json") == ladder()
    ladder()[4].save("me/one")
    assert Ladder.from_pretrained("me/one").budgets == (4,)
    Path("me/other").mkdir()
    with pytest.raises(FileError, match="is a folder"):
        Ladder.load("me/other")
    with pytest.raises(FileError, match=r"there is no file .*flux\.json"):
        Ladder.load("you/flux.json")


def test_nothing_that_is_published_holds_a_prompt(tmp_path, run_here):
    """Ladders, ledgers, records and cards know how many prompts there were, and a hash; no word of them."""
    said = ["Zebrafinch at noon", "Quokka in a hat", "blurry Marzipan"]
    texts = [part for text in said[:2] for part in ("--prompt", text)]
    more = ["--steps", 4, "--budgets", "2-3", "--height", 32, "--width", 32, "--json"]
    from zoo import entry

    entry("flux").build().save_pretrained(tmp_path / "tiny")
    code, _, err = run_here("search", tmp_path / "tiny", *texts, *more, "--out", tmp_path / "x.json")
    assert code == 0, err
    import budcache

    pipe = entry("flux").build()
    with budcache.recording(pipe) as record:
        pipe(prompt=said[2], num_inference_steps=4, height=32, width=32, max_sequence_length=8)
    record.save(tmp_path / "x.record")
    made = Ladder.load(tmp_path / "x.json")
    (tmp_path / "README.md").write_text(card(made, "me/x"))
    (tmp_path / "x.svg").write_text(draw(made))
    written = [path for path in tmp_path.iterdir() if path.is_file()]
    assert {path.suffix for path in written} >= {".json", ".jsonl", ".record", ".md", ".svg"}
    for path in written:
        assert not [
            word for text in said for word in text.split() if len(word) > 6 and word.encode() in path.read_bytes()
        ]
