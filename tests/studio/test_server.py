"""Who may see the page: this machine, and others with the password; and the command's refusals."""

from __future__ import annotations

import sys

import pytest
from starlette.testclient import TestClient

from budcache.errors import PipelineError
from budcache.policy import Ladder, Policy
from budcache.studio.server import Server, application, check_host, is_here

BASE = "http://127.0.0.1:7860"


@pytest.fixture
def client(make):
    """Asks a studio as a browser would; nothing has to be drawn for it."""
    studio = make(start=False)

    def ask(host="127.0.0.1", password=None):
        return TestClient(application(studio, host, password), base_url=BASE), studio

    return ask


def test_the_page_names_nothing_outside(client):
    browser, _ = client()
    page = browser.get("/")
    assert page.status_code == 200
    assert "fonts.googleapis" not in page.text
    assert "cdnjs" not in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert browser.get("/config").json()["analytics_enabled"] is False


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7860", "", "127.0.0.1.evil.example"])
def test_a_name_that_was_made_to_lead_here_is_refused(host, client):
    browser, _ = client()
    assert browser.get("/", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1234", "[::1]:1234"])
def test_this_machine_has_several_names(host, client):
    browser, _ = client()
    assert browser.get("/config", headers={"host": host}).status_code == 200


def test_others_are_asked_for_the_password(client):
    browser, _ = client("0.0.0.0", "open sesame")
    for path in ("/", "/config", "/kept/a/picture.webp", "/comparisons/compare-1/comparison.html"):
        asked = browser.get(path)
        assert (asked.status_code, "Basic" in asked.headers["www-authenticate"]) == (401, True)
    assert browser.get("/", auth=("", "wrong")).status_code == 401
    assert browser.get("/", headers={"authorization": "Basic %%%"}).status_code == 401
    assert browser.get("/", auth=("anybody", "open sesame")).status_code == 200


def test_a_password_is_asked_for_on_this_machine_as_well(client):
    """A proxy in front of it reaches it as this machine does."""
    page, _ = client(password="secret")
    assert page.get("/").status_code == 401
    assert page.get("/", auth=("anybody", "secret")).status_code == 200


def test_pages_of_others_cannot_start_anything(client):
    """They could not read the answer, but a job would have begun."""
    browser, _ = client()
    for site, code in (("cross-site", 403), ("same-site", 403)):
        assert browser.post("/gradio_api/queue/join", json={}, headers={"sec-fetch-site": site}).status_code == code
    assert browser.post("/gradio_api/queue/join", json={}, headers={"sec-fetch-site": "same-origin"}).status_code != 403
    assert browser.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link


def test_reports_and_pictures_are_served_and_nothing_else(client):
    browser, studio = client()
    home = studio.project.comparison("compare-1")
    home.mkdir(parents=True)
    (home / "comparison.html").write_text("<p>the report")
    (studio.project.path / "secret.json").write_text("secret")
    kept = studio.project.pictures / ("a" * 32)
    kept.mkdir(parents=True)
    (kept / "picture.webp").write_bytes(b"picture")
    assert browser.get("/comparisons/compare-1/comparison.html").text == "<p>the report"
    assert "immutable" in browser.get(f"/kept/{'a' * 32}/picture.webp").headers["cache-control"]
    for path in ("/kept/..%2f/secret.json", "/comparisons/..%2f..%2fsecret/comparison.html", "/kept/a/b"):
        assert browser.get(path).status_code == 404
    inside = studio.project.path.absolute()
    assert browser.get(f"/gradio_api/file={inside / 'project.json'}").status_code in (403, 404)
    ladder = studio.project.keep("mine", Ladder.of([Policy(mask="101")])).absolute()
    assert browser.get(f"/gradio_api/file={ladder}").status_code == 200


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.1.2.3", True), ("0.0.0.0", False), ("box", False)],
)
def test_what_is_here(host, here):
    assert is_here(host) is here
    if here:
        check_host(host, None)
    else:
        check_host(host, "a password")
        with pytest.raises(PipelineError, match="Set a password, too"):
            check_host(host, None)


def test_a_port_that_is_taken_is_said(make):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = Server(make(start=False), port=taken.getsockname()[1])
        with pytest.raises(PipelineError, match="cannot be listened on"):
            server.start()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--host", "0.0.0.0"], "Set a password, too"),
        (["--policy", "nowhere.json"], "nowhere.json"),
        (["tiny-flox"], "did you mean tiny-flux?"),
        (["./nowhere"], "there is no model"),
    ],
)
def test_the_command_refuses_with_a_sentence(options, sentence, run_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, said = run_here("studio", "--no-open", *options)
    assert code == 2
    assert sentence in said
    assert "Traceback" not in said
    assert not (tmp_path / "studio").exists()


def test_a_project_is_of_one_model_and_open_once(run_here, make, tmp_path):
    open_one = make(folder=tmp_path / "project", start=False)
    code, _, said = run_here("studio", "--no-open", "--project", tmp_path / "project")
    assert (code, "is open in another studio" in said) == (2, True)
    open_one.close()
    code, _, said = run_here("studio", "tiny-wan", "--no-open", "--project", tmp_path / "project")
    assert (code, "is of 'tiny-flux', not of 'tiny-wan'" in said) == (2, True)


def test_without_gradio_it_says_what_to_install(run_here, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    code, _, said = run_here("studio", "--no-open")
    assert (code, "Install budcache[studio]" in said) == (2, True)
