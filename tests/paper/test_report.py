"""The page of everything: read by a parser here, and by Chromium where there is one."""

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nsm.cli import main
from nsm.paper import report
from nsm.paper.findings import gather
from nsm.paper.rows import ROWS
from paper_results import make_up, write

ROOT = Path(__file__).resolve().parents[2]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VOID = {"meta", "link", "br", "img"}


class Reader(HTMLParser):
    """Tables by their id as rows of text; fails on tags that do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables, self.images, self.open, self.table = {}, [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        for name in ("src", "href"):
            assert not re.match(r"(https?:)?//", attributes.get(name) or ""), "the page must not need the network"
        if tag == "img":
            self.images.append(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.table = attributes["id"]
            self.tables[self.table] = []
        elif tag == "tr":
            self.tables[self.table].append([])
        elif tag in ("td", "th"):
            self.tables[self.table][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.tables[self.table][-1][-1] += data


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = make_up(tmp_path_factory.mktemp("results"))
    for name in ("operations", "figure-percentiles", "precision"):
        shutil.copy(ROOT / "results" / f"{name}.json", folder)
    return folder


@pytest.fixture(scope="module")
def page(results):
    report.write(results / "report.html", results)
    return (results / "report.html").read_text()


def expected(results: Path) -> dict[str, list[list[str]]]:
    """What the tables must say, from paper.json by plain arithmetic."""
    tables: dict[str, list[list[str]]] = {}
    for row in json.loads((results / "paper.json").read_text())["rows"]:
        rows = tables.setdefault(f"rows-{row['table']}", [])
        paper = "–" if row["paper"] is None else f"{row['paper']:g}"
        if row["mean"] is None:
            reason = row["reason"] or "no result yet"
            ours = reason if reason.startswith("not run") else f"not run: {reason}"
            rows.append([row["model"], paper, ours, "–", "–", ""])
            continue
        digits = 3 if row["mean"] < 1 else 2
        error = row["standard_error"]
        ours = f"{row['mean']:.{digits}f}" + (f" ± {error:.{digits}f}" if error is not None else "")
        if row["paper"] is None:
            rows.append([row["model"], paper, ours, str(row["n"]), "–", ""])
            continue
        apart = row["mean"] - row["paper"]
        bound = 2 * (
            error if error is not None else 100 * (row["mean"] / 100 * (1 - row["mean"] / 100) / 10_000) ** 0.5
        )
        sign = "≈" if abs(apart) <= bound else "▲" if apart < 0 else "▼"
        rows.append([row["model"], paper, ours, str(row["n"]), f"{apart:+.2f}", sign])
    return tables


def without_groups(tables: dict[str, list[list[str]]]) -> dict[str, list[list[str]]]:
    return {
        name: [row for row in rows[1:] if len(row) == 6] for name, rows in tables.items() if name.startswith("rows-")
    }


def test_tables_are_the_results(page, results):
    wanted = expected(results)
    assert without_groups(Reader(page).tables) == wanted
    assert sum(map(len, wanted.values())) == len(ROWS)
    assert {row[-1] for rows in wanted.values() for row in rows} == {"", "▲", "≈", "▼"}  # every case occurs


def test_figures_stand_in_the_page(page, results):
    images = Reader(page).images
    assert len(images) == 4  # percentiles, convergence, scaling, precision
    for image in images:
        assert image["alt"]
        kind, data = image["src"].split(",")
        assert kind == "data:image/svg+xml;base64"
        assert b"<svg" in base64.b64decode(data)
    assert "Weights of the third layer while learning: not yet measured" in page
    assert {path.name for path in (results / "figures").iterdir()} >= {"precision.svg", "figure-scaling.png"}


def test_settings_hardware_and_time_of_every_run(page, results):
    rows = {row[0]: row for row in Reader(page).tables["grid-settings"][1:]}
    assert set(rows) == {path.stem for path in (results / "paper").iterdir()} - {"scaling", "convergence"}
    some = next(name for name in rows if name.startswith("cifar10"))
    assert "network cifar-cnn" in rows[some][1]
    assert "augmentation crop-flip" in rows[some][1]
    assert "batch_size 100" in rows[some][1]
    assert rows[some][2:] == ["A made-up machine", "1 min 30 s", "torch 2.13.0", "0123456789ab"]


def test_operations_have_one_and_all_samples(page):
    rows = Reader(page).tables["grid-operations"][1:]
    some = [row for row in rows if row[:2] == ["mnist, pi-mnist-mlp", "bNSM, neuron noise"]]
    assert some[0][2:] == ["1", "833 k", "909", "900", "0", "1.38 k"]
    assert some[1][2] == "100"
    assert [row[2] for row in rows if row[:2] == ["mnist, pi-mnist-mlp", "dCNN"]] == ["1"]


def test_without_results_it_says_so(tmp_path):
    text = report.page(gather(tmp_path))
    tables = Reader(text).tables
    assert f"0 of {len(ROWS)} rows were run" in text
    assert all(row[2].startswith("not run") for rows in without_groups(tables).values() for row in rows)
    assert {row[1] for row in tables["grid-claims"][1:]} == {"not yet measured"}


def test_what_is_shown_is_escaped(tmp_path):
    row = {"table": "table1", "data": "<b>", "model": "a & <script>", "paper": 1.0, "run": None, "reason": '"<i>'}
    write(tmp_path / "paper.json", {"rows": [{**row, "mean": None, "n": 0, "standard_error": None}]})
    text = report.page(gather(tmp_path))
    assert "<script>" not in text
    assert without_groups(Reader(text).tables)["rows-table1"] == [["a & <script>", "1", 'not run: "<i>', "–", "–", ""]]


def test_the_command(results, tmp_path, capsys):
    assert main(["report", "--out", str(tmp_path / "page.html"), "--results", str(results), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["file"] == str(tmp_path / "page.html")
    assert len(said["rows"]) == len(ROWS)
    assert {"claim", "verdict", "found"} == set(said["claims"][0])
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert main(["report", "--results", str(tmp_path / "nowhere")]) == 2
    assert "Expected --results to be a folder" in capsys.readouterr().err


# ------------------------------------------------------------------------- in a browser

chromium = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (apt-get install chromium)")


def browse(path: Path, profile: Path) -> tuple[str, list[str]]:
    """The page as the browser has understood it, and what its console said."""
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
               "--enable-logging=stderr", f"--user-data-dir={profile}", "--dump-dom", path.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@chromium
def test_a_browser_reads_the_same_tables_without_an_error(page, results, tmp_path):
    dom, said = browse(results / "report.html", tmp_path)
    assert said == []
    assert without_groups(Reader(dom).tables) == expected(results)


@chromium
def test_an_error_would_be_seen(page, tmp_path):
    (tmp_path / "broken.html").write_text(page.replace("</body>", "<script>missing()</script></body>"))
    _, said = browse(tmp_path / "broken.html", tmp_path / "profile")
    assert any("missing is not defined" in line for line in said)


@chromium
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_is_no_wider_than_the_screen_and_its_pictures_load(page, results, tmp_path, width):
    script = """<script>onload = () => { const page = frames[0].document;
        const images = [...page.images].every(image => image.complete && image.naturalWidth > 0);
        document.title = page.documentElement.scrollWidth + " " + images; }</script>"""
    frame = (
        f'<iframe src="{(results / "report.html").as_uri()}" style="border:0" width="{width}" height="800"></iframe>'
    )
    (tmp_path / "frame.html").write_text(f"<!DOCTYPE html><title>-</title>{script}{frame}")
    dom, said = browse(tmp_path / "frame.html", tmp_path / "profile")
    assert said == []
    found = re.search(r"<title>(\d+) (\w+)</title>", dom)
    assert found is not None
    assert int(found[1]) <= width
    assert found[2] == "true"
