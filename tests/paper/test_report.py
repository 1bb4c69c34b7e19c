"""The page of everything: read by a parser here, and by Chromium where there is one."""

import base64
import json
import re
import shutil
import subprocess
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nsm.cli import main
from nsm.layers import NSMLayer
from nsm.networks import build
from nsm.paper import report
from nsm.paper.findings import MEANING, gather
from nsm.paper.rows import ROWS
from nsm.paper.showing import label
from nsm.recipes import Recipe
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
            rows.append([row["model"], paper, "not run yet" if row["reason"] == "not run yet" else "not run", "–", "–"])
            continue
        digits = 3 if row["mean"] < 1 else 2
        error = row["standard_error"]
        ours = f"{row['mean']:.{digits}f}" + (f" ± {error:.{digits}f}" if error is not None else "")
        if row["paper"] is None:
            rows.append([row["model"], paper, ours, str(row["n"]), "–"])
            continue
        apart = row["mean"] - row["paper"]
        bound = 2 * (
            error if error is not None else 100 * (row["mean"] / 100 * (1 - row["mean"] / 100) / 10_000) ** 0.5
        )
        sign = "≈" if abs(apart) <= bound else "▲" if apart < 0 else "▼"
        rows.append([row["model"], paper, f"{ours} {sign}", str(row["n"]), f"{apart:+.2f}"])
    return tables


def without_groups(tables: dict[str, list[list[str]]]) -> dict[str, list[list[str]]]:
    return {
        name: [row for row in rows[1:] if len(row) == 5] for name, rows in tables.items() if name.startswith("rows-")
    }


def test_tables_are_the_results(page, results):
    wanted = expected(results)
    assert without_groups(Reader(page).tables) == wanted
    assert sum(map(len, wanted.values())) == len(ROWS)
    marks = {row[2][-1] for rows in wanted.values() for row in rows}
    assert {"▲", "≈", "▼"} <= marks  # every case occurs


def test_marks_are_counted_of_the_rows_that_the_paper_has(page, results):
    rows = json.loads((results / "paper.json").read_text())["rows"]
    run = [row for row in rows if row["mean"] is not None]
    theirs = [row for row in rows if row["paper"] is not None and not row["own"]]
    models = {(row["data"], row["model"]) for row in run if row in theirs}
    signs = [sign for row, shown in zip(rows, [r for t in expected(results).values() for r in t], strict=True)
             if (row["data"], row["model"]) in models for sign in shown[2] if sign in "▲≈▼"]  # fmt: skip
    counts = ", ".join(f"{signs.count(sign)} {sign} {word}" for sign, word in MEANING.items())
    assert f"{len(run)} of {len(ROWS)} rows were run." in page
    assert f"Of the paper's own {len(theirs)}, {len(models)} were run: {counts}." in page
    assert any(row["own"] and row["paper"] is not None and row["mean"] is not None for row in rows)  # and it matters


def test_rows_of_ours_marks_and_what_must_be_known_are_explained(page, results):
    assert escape(report.KEY) in page
    rows = json.loads((results / "paper.json").read_text())["rows"]
    known = {row["note"] for row in rows if row["note"] and row["mean"] is not None}
    assert known
    for note in known:
        assert page.count(escape(note)) >= 1
    assert page.count('class="mark" role="img" aria-label="') == sum(page.count(f">{sign}</span>") for sign in "▲≈▼")


def test_quick_rows_are_compared_with_nothing(tmp_path):
    plain = {"table": "table1", "data": "PI MNIST", "paper": 1.0, "run": None, "n": 2, "standard_error": 0.1}
    write(tmp_path / "paper.json", {"rows": [{**plain, "model": "NSM", "mean": 9.0, "quick": True}]})
    text = report.page(gather(tmp_path))
    assert "These are quick versions, to be compared with nothing." in text
    assert Reader(text).tables["rows-table1"][-1] == ["NSM", "1", "9.00 ± 0.10 (quick)", "2", "–"]


def test_a_reason_stands_once_below_the_rows_it_is_of(tmp_path):
    rows = [
        ("EMNIST", "a", "no files"),
        ("EMNIST", "b", "no files"),
        ("EMNIST", "c", "not run yet"),
        ("N", "d", "no files"),
    ]
    plain = {"table": "table2", "paper": 1.0, "run": None, "mean": None, "n": 0, "standard_error": None}
    shown = [{**plain, "data": data, "model": model, "reason": reason} for data, model, reason in rows]
    write(tmp_path / "paper.json", {"rows": shown})
    found = Reader(report.page(gather(tmp_path))).tables["rows-table2"][1:]
    why = "not run: no files"
    assert [row[0] for row in found] == ["EMNIST", "a", "b", why, "c", "N", "d", why]


def test_figures_stand_in_the_page_with_what_is_seen(page, results):
    images = Reader(page).images
    assert len(images) == 4  # percentiles, convergence, scaling, precision
    for name, found in gather(results).records.items():
        if name in report.FIGURES:
            caption = report.FIGURES[name][3](found)
            assert f'<figcaption id="seen-{name}">{label(found)}{escape(caption)}' in page
            assert f"n = {found.get('seeds', 2 if name == 'convergence' else 5)}" in caption
    for image in images:
        assert image["alt"]
        assert f'id="{image["aria-describedby"]}"' in page
        kind, data = image["src"].split(",")
        assert kind == "data:image/svg+xml;base64"
        assert b"<svg" in base64.b64decode(data)
    assert "Weights of the third layer while learning: not yet measured" in page
    assert {path.name for path in (results / "figures").iterdir()} >= {"precision.svg", "figure-scaling.png"}


def test_settings_hardware_and_time_of_every_run(page, results):
    rows = {row[0]: row for row in Reader(page).tables["grid-settings"][1:]}
    assert set(rows) == {path.stem for path in (results / "paper").iterdir()} - {"scaling", "convergence"}
    some = next(name for name in rows if name.startswith("cifar10") and "muon" not in name)
    assert "network cifar-cnn" in rows[some][1]
    assert "augmentation crop-flip" in rows[some][1]
    assert "batch_size 100" in rows[some][1]
    assert rows[some][2:] == ["A made-up machine", "1 min 30 s", "torch 2.13.0", "0123456789ab"]
    assert "epochs 30" in rows["pi-mnist-nsm-convergence"][1]


def test_defaults_are_told_once_and_are_those_of_the_code(page):
    for name, value in Recipe().to_dict().items():
        assert f"{name} {value}" in page.split("Defaults, which stand")[1].split("</p>")[0]
    units = {type(m): m.noise for m in build(Recipe()).modules() if isinstance(m, NSMLayer)}
    p = {kind.__name__: noise.p for kind, noise in units.items()}  # type: ignore[attr-defined]
    assert f"p = {p['NSMConv2d']} in convolutions and {p['NSMLinear']} in linear layers" in page
    gaussian = next(m for m in build(Recipe(unit="gNSM")).modules() if isinstance(m, NSMLayer)).noise
    assert f"σ = {gaussian.sigma:g} (Gaussian)" in page  # type: ignore[attr-defined]


def test_settings_of_figures_starts_and_searches(tmp_path):
    part = {
        "recipe": Recipe(unit="gNSM", init_from="/some/where").to_dict(),
        "hardware": "A",
        "commit": "0123456789abcdef+changes",
    }
    (tmp_path / "paper").mkdir()
    (tmp_path / "search").mkdir()
    write(tmp_path / "paper" / "late.json", {"start": "early", "seconds": 61.0, "parts": [part]})
    row = {"variant": "slow", "mean": 0.5, "standard_error": 0.1, "n": 2, "hardware": "B", "seconds": 9.0}
    row["recipe"] = Recipe(unit="BD", epochs=60, lr=0.1, init_from="/some/where").to_dict()
    tried = {"slow": {"lr": 0.1}, "never": {"lr": 9.0}}
    search = {"recipe": Recipe(unit="BD").to_dict(), "epochs": 60, "variants": tried, "rows": [row], "commit": "abc"}
    write(tmp_path / "search" / "some.json", search)
    shutil.copy(ROOT / "results" / "figure-weights.json", tmp_path)
    found = Reader(text := report.page(gather(tmp_path))).tables
    (late,) = found["grid-settings"][1:]
    assert late[0] == "late"
    assert late[1].endswith("unit gNSM, epochs 200, batch_size 100, lr 0.0003, start early")
    assert late[2:] == ["A", "1 min 1 s", "", "0123456789ab+changes"]
    assert found["grid-search-some"][1:] == [["slow", "epochs 60, lr 0.1", "0.500 ± 0.100 (n = 2)", "B, 9 s"]]
    assert "searched: data mnist, network mnist-cnn, unit BD, epochs 200" in text
    assert "/some/where" not in text
    weights = json.loads((ROOT / "results" / "figure-weights.json").read_text())
    figures = {row[0].removesuffix(" (quick)"): row[1] for row in found["grid-recipes"][1:]}
    assert set(figures) == {"figure-weights: NSM", "figure-weights: StNN"}
    assert figures["figure-weights: StNN"].startswith(
        f"epochs {weights['epochs']}, seeds {weights['seeds']}, data mnist"
    )
    assert "unit StNN" in figures["figure-weights: StNN"]


def test_operations_have_one_and_all_samples(page):
    rows = Reader(page).tables["grid-operations"][1:]
    assert rows[0] == ["mnist, pi-mnist-mlp"]
    assert rows[1] == ["bNSM, neuron noise", "1", "833 k", "909", "900", "0", "1.38 k"]
    assert rows[2][:2] == ["bNSM, neuron noise", "100"]
    ends = rows.index(["mnist, mnist-cnn"])
    assert [row[1] for row in rows[:ends] if row[0] == "dCNN"] == ["1"]


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
    assert without_groups(Reader(text).tables)["rows-table1"] == [["a & <script>", "1", "not run", "–", "–"]]
    assert "not run: &quot;&lt;i&gt;" in text


def test_the_command(results, tmp_path, capsys):
    shutil.copy(results / "paper.json", tmp_path)
    results = tmp_path
    assert main(["report", "--out", str(tmp_path / "page.html"), "--results", str(results), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["file"] == str(tmp_path / "page.html")
    assert len(said["rows"]) == len(ROWS)
    assert {"claim", "verdict", "found"} == set(said["claims"][0])
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert main(["report", "--results", str(tmp_path / "nowhere")]) == 2
    assert "Expected --results to be the folder of results of `nsm reproduce`" in capsys.readouterr().err


def test_a_broken_file_is_one_line_and_status_3(tmp_path, capsys):
    (tmp_path / "paper.json").write_text('{"rows": [{"table": ')
    assert main(["report", "--results", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"nsm: Expected {tmp_path / 'paper.json'} to be JSON")
    assert said.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


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


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The page of the repository's own results, which have every figure."""
    path = tmp_path_factory.mktemp("own") / "report.html"
    path.write_text(report.page(gather(ROOT / "results")))
    return path


def measured(page: Path, width: int, expression: str, folder: Path) -> str:
    """What a script says of a page in a window of this width, which must say nothing in the console."""
    script = f"<script>onload = () => {{ const page = frames[0].document; document.title = {expression}; }}</script>"
    frame = f'<iframe src="{page.as_uri()}" style="border:0" width="{width}" height="800"></iframe>'
    (folder / "frame.html").write_text(f"<!DOCTYPE html><title>-</title>{script}{frame}")
    dom, said = browse(folder / "frame.html", folder / "profile")
    assert said == []
    found = re.search(r"<title>(.*)</title>", dom)
    assert found is not None
    return found[1]


@chromium
@pytest.mark.parametrize("width", [320, 375, 1200])
def test_the_page_of_the_repository_fits_the_screen(own, tmp_path, width):
    """The page itself, its figures, whose pictures all load, and the tables whose marks must be seen."""
    loaded = "[...page.images].filter(image => image.complete && image.naturalWidth > 0).length"
    widest = "Math.max(...[...page.querySelectorAll('figure')].map(each => each.getBoundingClientRect().right))"
    wide = "page.querySelectorAll('.wide:has(.errors), .wide:has(#grid-operations)')"
    wider = "filter(each => each.scrollWidth > each.clientWidth)"
    cut = f"...[...{wide}].{wider}.map(each => each.firstChild.id)"
    cut += f", ...[...page.querySelectorAll('figure')].{wider}.map(each => each.id)"
    said = measured(own, width, f"[page.documentElement.scrollWidth, {loaded}, {widest}, {cut}].join(' ')", tmp_path)
    scroll, images, right, *clipped = said.split()
    assert int(scroll) <= width
    assert int(images) == len(report.FIGURES)
    assert float(right) <= width
    panels = [f"figure-{name}" for name in report.FIGURES if name != "convergence"]  # of which that has one
    scrolls = ["grid-operations", *panels]  # on a phone, to be legible
    assert clipped == (scrolls if width < 400 else [])


@chromium
def test_the_tables_of_the_repository_are_its_results(own, tmp_path):
    dom, said = browse(own, tmp_path)
    assert said == []
    assert without_groups(Reader(dom).tables) == expected(ROOT / "results")


@chromium
def test_the_page_is_printed(own, tmp_path):
    paper = tmp_path / "report.pdf"
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               f"--print-to-pdf={paper}", own.as_uri()]  # fmt: skip
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert paper.read_bytes().startswith(b"%PDF")
    assert 5 <= len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes())) <= 40
