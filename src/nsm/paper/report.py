"""``nsm report``: one HTML file with every table, figure and setting, that needs nothing but itself.

All numbers come from results/; what is missing there is said to be. Figures are drawn anew and stand in the page as
SVG data, so that no name in one of them can meet that of another.
"""

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsm import record
from nsm.paper import figure_curves, figure_percentiles, figure_statistics, figure_weights, precision
from nsm.paper.claims import RULES_WRITTEN, verdicts
from nsm.paper.findings import (
    ABBREVIATIONS,
    BETTER,
    EQUAL,
    MEANING,
    WORSE,
    Findings,
    amount,
    difference,
    duration,
    gather,
    mark,
    notes,
    of_the_paper,
    ours,
    percent,
    reason,
    short,
)
from nsm.paper.showing import RESULTS, label, save
from nsm.recipes import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "table1": ("Table 1", "permutation-invariant MNIST, 784-300-300-300-10"),
    "table2": ("Table 2", "convolutional networks on MNIST, EMNIST and N-MNIST"),
    "table3": ("Table 3", "all-convolutional network on CIFAR-10 and CIFAR-100; * from scratch"),
    "table4": ("Table 4", "all-convolutional network on DVS Gestures"),
}
#: name in `Findings.records`: file, title, how it is drawn, what is seen in it
FIGURES: dict[str, tuple[str, str, Callable[[dict[str, Any]], "Figure"], Callable[[dict[str, Any]], str]]] = {
    "percentiles": (
        figure_percentiles.NAME,
        "Input to the last hidden layer while learning (the paper's Figure 2)",
        figure_percentiles.draw,
        figure_percentiles.caption,
    ),
    "weights": (
        figure_weights.NAME,
        "Weights of the third layer while learning",
        figure_weights.draw,
        figure_weights.caption,
    ),
    "statistics": (
        figure_statistics.NAME,
        "Weights, gradients and their angles",
        figure_statistics.draw,
        figure_statistics.caption,
    ),
    "convergence": (
        "figure-convergence",
        "Learning curves, NSM against StNN",
        figure_curves.draw_convergence,
        figure_curves.caption_convergence,
    ),
    "scaling": (
        "figure-scaling",
        "Scaled weights at inference",
        figure_curves.draw_scaling,
        figure_curves.caption_scaling,
    ),
    "precision": (
        precision.NAME,
        "Learning with weights of fixed range and few bits",
        precision.draw,
        precision.caption,
    ),
}
_ALWAYS = ("data", "network", "unit", "epochs", "batch_size", "lr")  # settings that are shown whatever they are
_BESIDE = ("steps", "epochs", "seeds", "reach", "rates", "num_samples", "test_digits")  # a figure's own settings
#: what stands before the tables
KEY = (
    "Indented rows in grey are ours: beside the paper's figure, if there is one, other recipes, with settings "
    "chosen on validation data but for what the notes say; those for CIFAR on CIFAR-10. The difference is ours less "
    "the paper's. " + ABBREVIATIONS
)
NOISE = "p = 0.25 in convolutions and 0.5 in linear layers (blank-out), σ = 1 (Gaussian)"  # of `nsm.networks`


def write(out: Path, results: Path = RESULTS) -> Findings:
    """Write the page to ``out`` and every figure to ``results/figures``; returns what they were made from."""
    findings = gather(results)
    text = page(findings, results)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.tmp")
    temporary.write_text(text)
    temporary.replace(out)
    return findings


def page(findings: Findings, results: Path | None = None) -> str:
    """The whole page; figures are also written to ``results/figures`` if a folder is given."""
    tables = "".join(_table(findings, name) for name in TITLES)
    parts = [
        _header(findings),
        _section("claims", "What the paper says, and what was found", _claims(findings)),
        f'<section id="tables"><h2>Tables</h2><p><small>{escape(KEY)}</small></p></section>',
        tables,
        _section("figures", "Figures", "".join(_figures(findings, results))),
        _section("operations", "Operations of one inference", _operations(findings)),
        _section("settings", "Settings of every run", _settings(findings)),
    ]
    return _PAGE.replace("{style}", Path(__file__).with_suffix(".css").read_text()).replace("{body}", "\n".join(parts))


# ------------------------------------------------------------------------- parts


def _header(findings: Findings) -> str:
    paper = of_the_paper(findings.rows)
    marks = [mark(row) for row in paper]
    run, theirs = (sum(row["mean"] is not None for row in rows) for rows in (findings.rows, paper))
    counts = ", ".join(f"{marks.count(sign)} {sign} {MEANING[sign]}" for sign in (BETTER, EQUAL, WORSE))
    links = [("claims", "claims"), *((name, title) for name, (title, _) in TITLES.items())]
    links += [("figures", "figures"), ("operations", "operations"), ("settings", "settings")]
    menu = " · ".join(f'<a href="#{anchor}">{escape(text)}</a>' for anchor, text in links)
    quick = "These are quick versions, to be compared with nothing. " if any(map(_quick, findings.rows)) else ""
    return (
        "<header><h1>Neural Sampling Machines: the paper, run again</h1>"
        "<p><cite>Inherent Weight Normalization in Stochastic Neural Networks</cite>, Detorakis, Dutta, Khanna, Jerry, "
        "Datta and Neftci, NeurIPS 2019.</p>"
        f"<p><strong>{quick}{run} of {len(findings.rows)} rows were run.</strong> Of the paper's own {len(paper)}, "
        f"{theirs} were run: {counts}. Errors are test errors in percent; ± is one standard error over n seeds. With "
        "one seed the sampling error of the test inputs decides what is equal; it does not count the chance of "
        "training.</p>"
        f"<nav>{menu}</nav></header>"
    )


def _claims(findings: Findings) -> str:
    rows = []
    for claim in verdicts(findings):
        short = " <small>(short version)</small>" if claim.quick else ""
        kind = claim.verdict.replace(" ", "-")
        parts = "".join(f"<li>{escape(part)}</li>" for part in claim.parts)
        listed = f"<ul>{parts}</ul>" if parts else "<br>"
        rows.append(
            [
                f"<strong>{escape(claim.title)}</strong><br><small>{escape(claim.paper)}</small>",
                f'<span class="verdict {kind}">{claim.verdict}</span>{short}',
                f"{escape(claim.found)}{listed}<small>{escape(claim.rule)}</small>",
            ]
        )
    note = f"<p><small>{escape(RULES_WRITTEN)}</small></p>"
    return note + _grid("claims", ["claim", "verdict", "found, and the rule"], rows, escaped=True)


def _table(findings: Findings, table: str) -> str:
    """Every row of a table; what several rows in turn were not run for is said once, after them; then the notes."""
    title, about = TITLES[table]
    body, shown = [], [row for row in findings.rows if row["table"] == table]
    for data, rows in groupby(shown, key=itemgetter("data")):
        body.append(f'<tr class="group"><th colspan="5" scope="rowgroup">{escape(data)}</th></tr>')
        for why, alike in groupby(rows, key=reason):
            body += map(_row, alike)
            if why:
                body.append(f'<tr class="reason"><td colspan="5">not run: {escape(why)}</td></tr>')
    head = "".join(f'<th scope="col">{name}</th>' for name in ("model", "paper", "ours", "n", "difference"))
    grid = (
        f'<table class="errors" id="rows-{table}" aria-labelledby="{table}-title"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )
    said = "".join(f"<li>{escape(note)}</li>" for note in notes(shown))
    beside = f'<ul class="notes">{said}</ul>' if said else ""
    return _section(table, f"{title}: {about}", f'<div class="wide">{grid}</div>{beside}')


def _row(row: dict[str, Any]) -> str:
    apart, sign = None if _quick(row) else difference(row), mark(row)
    missing = row["mean"] is None
    said = "not run" if reason(row) else ours(row)
    means = f'role="img" aria-label="{MEANING[sign]}" title="{MEANING[sign]}"' if sign else ""
    beside = f' <span class="mark" {means}>{sign}</span>' if sign else ""
    cells = [
        f'<th scope="row">{escape(row["model"])}</th>',
        f"<td>{'–' if row['paper'] is None else format(row['paper'], 'g')}</td>",
        f'<td class="{"missing" if missing else "ours"}">{escape(said)}{beside}</td>',
        f"<td>{row['n'] or '–'}</td>",
        f"<td>{'–' if apart is None else format(apart, '+.2f')}</td>",
    ]
    kind = "own" if row.get("own") else "of-the-paper"
    return f'<tr class="{kind}">{"".join(cells)}</tr>'


def _quick(row: dict[str, Any]) -> bool:
    return bool(row.get("quick"))


def _figures(findings: Findings, results: Path | None) -> Iterator[str]:
    for name, (file, title, draw, caption) in FIGURES.items():
        found = findings.records.get(name)
        if found is None:
            yield f'<figure id="figure-{name}"><figcaption>{escape(title)}: not yet measured</figcaption></figure>'
            continue
        figure = draw(found)
        svg = _svg(figure, file) if results is None else save(figure, file, results)[1].read_bytes()
        seen, made = escape(f"{label(found)}{caption(found)}"), escape(", ".join(_made(found)))
        yield (
            f'<figure id="figure-{name}"><h3>{escape(title)}</h3><img alt="{escape(title)}" '
            f'aria-describedby="seen-{name}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">'
            f'<figcaption id="seen-{name}">{seen} <small>({made})</small></figcaption></figure>'
        )


def _made(found: dict[str, Any]) -> Iterator[str]:
    yield found.get("hardware") or "unknown hardware"
    if found.get("seconds"):
        yield duration(found["seconds"])
    if found.get("commit"):
        yield f"commit {short(found['commit'])}"


def _svg(figure: "Figure", name: str) -> bytes:
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": name}), io.BytesIO() as data:
        figure.savefig(data, format="svg", metadata={"Date": None})
        return data.getvalue()


def _operations(findings: Findings) -> str:
    found = findings.records.get("operations")
    if found is None:
        return "<p>not yet counted</p>"
    kinds = ("additions", "comparisons", "multiplications", "exponentials", "random_bits")
    rows = []
    for network, units in groupby(found["rows"], key=itemgetter("data", "network")):
        rows.append([", ".join(network)])
        for row in units:
            name = row["unit"] + (f", {row['site']} noise" if row["site"] else "")
            for key, samples in (("one_sample", 1), ("all_samples", row["samples"])):
                if key == "one_sample" or samples > 1:
                    rows.append([name, str(samples), *(amount(row[key][kind]) for kind in kinds)])
    head = ["units", "samples", *(kind.replace("_", " ") for kind in kinds)]
    return (
        "<p>Counted from the modules; products with ±1 are additions, what precedes the first draw is computed once "
        "for all samples, blanked-out inputs count as if they were added.</p>" + _grid("operations", head, rows)
    )


# ------------------------------------------------------------------------- settings


def _settings(findings: Findings) -> str:
    """The defaults once, and what differs from them in every run, figure and search."""
    plain = ", ".join(f"{name} {value}" for name, value in Recipe().to_dict().items())
    head = ["settings that are not the default", "hardware", "time", "versions", "commit"]
    runs, figures = list(_runs(findings)), list(_recipes(findings))
    return "".join(
        [
            f"<p>Defaults, which stand wherever nothing else is said: {escape(plain)}. NSM units have {NOISE}.</p>",
            _grid("settings", ["run", *head], runs) if runs else "<p>No run is in results/paper yet.</p>",
            f"<h3>Settings of figures</h3>{_grid('recipes', ['figure', *head], figures)}" if figures else "",
            *(_search(name, found) for name, found in findings.searches.items()),
        ]
    )


def _runs(findings: Findings) -> Iterator[list[str]]:
    for name, run in findings.runs.items():
        parts = run["parts"] or [run]
        first = parts[0]
        said = [f"start {run['start']}"] if run.get("start") else []
        hardware = ", ".join(dict.fromkeys(str(part.get("hardware")) for part in parts))
        yield [
            name + (" (quick)" if run.get("quick") else ""),
            ", ".join([*_differences(first.get("recipe") or {}), *said]),
            *_where({**first, "hardware": hardware, "seconds": run.get("seconds")})[:-1],
            ", ".join(dict.fromkeys(short(part.get("commit")) for part in parts)),
        ]


def _recipes(findings: Findings) -> Iterator[list[str]]:
    """Of every figure that learned something itself, the recipe of each of its networks."""
    for name, (file, *_) in FIGURES.items():
        found = findings.records.get(name, {})
        beside = [f"{key} {found[key]}" for key in _BESIDE if key in found]
        for network, recipe in found.get("recipes", {"all networks": {}} if beside else {}).items():
            chosen = ("lr",) if "rates" in found else ()  # of which the rates are told beside
            ours = {key: value for key, value in recipe.items() if key not in ("epochs", "seeds", *chosen)}
            quick = " (quick)" if found.get("quick") else ""
            yield [f"{file}: {network}{quick}", ", ".join([*beside, *_differences(ours)]), *_where(found)]


def _where(found: dict[str, Any]) -> list[str]:
    versions = " ".join(f"{package} {version}" for package, version in found.get("versions", {}).items())
    seconds = found.get("seconds")
    return [str(found.get("hardware")), duration(seconds) if seconds else "–", versions, short(found.get("commit"))]


def _search(name: str, found: dict[str, Any]) -> str:
    """What was tried for a tuned recipe, with its error on the validation data."""
    base = found["recipe"]
    rows = [
        [
            row["variant"],
            ", ".join(_differences(row["recipe"], base)) or "–",
            f"{percent(row)} (n = {row['n']})",
            f"{row['hardware']}, {duration(row['seconds'])}",
        ]
        for row in found["rows"]
    ]
    return (
        f"<h3>Search: {escape(name)}</h3><p>Errors in percent on the validation data, by which recipes were chosen. A "
        "run of fewer epochs shrinks its schedule and the memory of averages and decay alike. The recipe around which "
        f"was searched: {escape(', '.join(_differences(base)))}; commit {escape(short(found.get('commit')))}.</p>"
        + _grid(f"search-{name}", ["variant", "what it changes", "error", "where, time"], rows)
    )


def _differences(recipe: dict[str, Any], base: dict[str, Any] | None = None) -> Iterator[str]:
    """Where settings are others than those of a base, or of the plain recipe; the folder of a start has a name."""
    plain = base or Recipe().to_dict()
    for name, value in recipe.items():
        if name != "init_from" and ((base is None and name in _ALWAYS) or value != plain.get(name)):
            yield f"{name} {value}"


def _section(anchor: str, title: str, body: str) -> str:
    return f'<section id="{anchor}"><h2 id="{anchor}-title">{escape(title)}</h2>{body}</section>'


def _grid(name: str, head: Sequence[str], rows: Sequence[Sequence[str]], escaped: bool = False) -> str:
    """A table; a row of one cell is a heading of those below it."""
    top = "".join(f'<th scope="col">{escape(each)}</th>' for each in head)
    body = []
    for row in rows:
        cells = row if escaped else [escape(cell) for cell in row]
        if len(cells) == 1:
            body.append(f'<tr class="group"><th colspan="{len(head)}" scope="rowgroup">{cells[0]}</th></tr>')
        else:
            first, *rest = cells
            body.append(f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>")
    return (
        f'<div class="wide"><table id="grid-{name}" aria-label="{name}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def summary(findings: Findings) -> dict[str, Any]:
    """What the page says, as plain values."""
    rows = [{**row, "difference": difference(row), "mark": mark(row) or None} for row in findings.rows]
    claims = [{"claim": each.title, "verdict": each.verdict, "found": each.found} for each in verdicts(findings)]
    return {"rows": rows, "claims": claims, "commit": record.commit()}


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>Neural Sampling Machines: the paper, run again</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
