"""``nsm report``: one HTML file with every table, figure and setting, that needs nothing but itself.

All numbers come from results/; what is missing there is said to be. Figures are drawn anew and stand in the page as
SVG data, so that no name in one of them can meet that of another.
"""

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsm import record
from nsm.paper import figure_curves, figure_percentiles, figure_statistics, figure_weights, precision
from nsm.paper.claims import RULES_WRITTEN, verdicts
from nsm.paper.findings import BETTER, EQUAL, MEANING, WORSE, Findings, amount, difference, duration, gather, mark, ours
from nsm.paper.showing import RESULTS, save
from nsm.recipes import Recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "table1": ("Table 1", "permutation-invariant MNIST, 784-300-300-300-10"),
    "table2": ("Table 2", "convolutional networks on MNIST, EMNIST and N-MNIST"),
    "table3": ("Table 3", "all-convolutional network on CIFAR-10 and CIFAR-100; * from scratch"),
    "table4": ("Table 4", "all-convolutional network on DVS Gestures"),
}
#: name in `Findings.records`: file, title, how it is drawn
FIGURES: dict[str, tuple[str, str, Callable[[dict[str, Any]], "Figure"]]] = {
    "percentiles": (
        figure_percentiles.NAME,
        "Input to the last hidden layer while learning (the paper's Figure 2)",
        figure_percentiles.draw,
    ),
    "weights": (figure_weights.NAME, "Weights of the third layer while learning", figure_weights.draw),
    "statistics": (figure_statistics.NAME, "Weights, gradients and their angles", figure_statistics.draw),
    "convergence": ("figure-convergence", "Learning curves, NSM against StNN", figure_curves.draw_convergence),
    "scaling": ("figure-scaling", "Scaled weights at inference", figure_curves.draw_scaling),
    "precision": (precision.NAME, "Learning with weights of fixed range and few bits", precision.draw),
}
_ALWAYS = ("data", "network", "unit", "epochs", "batch_size", "lr")  # settings that are shown whatever they are


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
        tables,
        _section("figures", "Figures", "".join(_figures(findings, results))),
        _section("operations", "Operations of one inference", _operations(findings)),
        _section("settings", "Settings of every run", _settings(findings)),
    ]
    return _PAGE.replace("{style}", Path(__file__).with_suffix(".css").read_text()).replace("{body}", "\n".join(parts))


# ------------------------------------------------------------------------- parts


def _header(findings: Findings) -> str:
    marks = [mark(row) for row in findings.rows]
    run = sum(row["mean"] is not None for row in findings.rows)
    counts = ", ".join(f"{marks.count(sign)} {sign} {MEANING[sign]}" for sign in (BETTER, EQUAL, WORSE))
    links = [("claims", "claims"), *((name, title) for name, (title, _) in TITLES.items())]
    links += [("figures", "figures"), ("operations", "operations"), ("settings", "settings")]
    menu = " · ".join(f'<a href="#{anchor}">{escape(text)}</a>' for anchor, text in links)
    return (
        "<header><h1>Neural Sampling Machines: the paper, run again</h1>"
        "<p><cite>Inherent Weight Normalization in Stochastic Neural Networks</cite>, Detorakis, Dutta, Khanna, Jerry, "
        "Datta and Neftci, NeurIPS 2019.</p>"
        f"<p><strong>{run} of {len(findings.rows)} rows were run.</strong> Of those that the paper has: {counts}. "
        "Errors are test errors in percent; ± is one standard error over n seeds; where there is one seed, that of a "
        "share of the test inputs decides what is equal.</p>"
        f"<nav>{menu}</nav></header>"
    )


def _claims(findings: Findings) -> str:
    rows = []
    for claim in verdicts(findings):
        short = " <small>(short version)</small>" if claim.quick else ""
        kind = claim.verdict.replace(" ", "-")
        rows.append(
            [
                f"<strong>{escape(claim.title)}</strong><br><small>{escape(claim.paper)}</small>",
                f'<span class="verdict {kind}">{claim.verdict}</span>{short}',
                f"{escape(claim.found)}<br><small>{escape(claim.rule)}</small>",
            ]
        )
    note = f"<p><small>{escape(RULES_WRITTEN)}</small></p>"
    return note + _grid("claims", ["claim", "verdict", "found, and the rule"], rows, escaped=True)


def _table(findings: Findings, table: str) -> str:
    title, about = TITLES[table]
    body, last = [], None
    for row in (row for row in findings.rows if row["table"] == table):
        if row["data"] != last:
            last = row["data"]
            body.append(f'<tr class="group"><th colspan="6" scope="rowgroup">{escape(last)}</th></tr>')
        body.append(_row(row))
    head = "".join(f'<th scope="col">{name}</th>' for name in ("model", "paper", "ours", "n", "difference", ""))
    grid = (
        f'<table class="errors" id="rows-{table}"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    )
    return _section(table, f"{title}: {about}", f'<div class="wide">{grid}</div>')


def _row(row: dict[str, Any]) -> str:
    apart, sign = difference(row), mark(row)
    missing = row["mean"] is None
    cells = [
        f'<th scope="row">{escape(row["model"])}</th>',
        f"<td>{'–' if row['paper'] is None else format(row['paper'], 'g')}</td>",
        f'<td class="{"missing" if missing else "ours"}">{escape(ours(row))}</td>',
        f"<td>{row['n'] or '–'}</td>",
        f"<td>{'–' if apart is None else format(apart, '+.2f')}</td>",
        f'<td class="mark" title="{MEANING.get(sign, "")}">{sign}</td>',
    ]
    kind = "own" if row.get("own") else "of-the-paper"
    return f'<tr class="{kind}">{"".join(cells)}</tr>'


def _figures(findings: Findings, results: Path | None) -> Iterator[str]:
    for name, (file, title, draw) in FIGURES.items():
        found = findings.records.get(name)
        if found is None:
            yield f'<figure id="figure-{name}"><figcaption>{escape(title)}: not yet measured</figcaption></figure>'
            continue
        figure = draw(found)
        if results is not None:
            save(figure, file, results)
        seen = escape(" ".join(figure.get_suptitle().split()))
        made = escape(", ".join(_made(found)))
        yield (
            f'<figure id="figure-{name}"><h3>{escape(title)}</h3><div class="wide"><img alt="{seen}" '
            f'src="data:image/svg+xml;base64,{_svg(figure, file)}"></div>'
            f"<figcaption>{seen} <small>({made})</small></figcaption></figure>"
        )


def _made(found: dict[str, Any]) -> Iterator[str]:
    yield found.get("hardware") or "unknown hardware"
    if found.get("seconds"):
        yield duration(found["seconds"])
    if found.get("commit"):
        yield f"commit {found['commit'][:12]}"


def _svg(figure: "Figure", name: str) -> str:
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": name}), io.BytesIO() as data:
        figure.savefig(data, format="svg", metadata={"Date": None})
        return base64.b64encode(data.getvalue()).decode()


def _operations(findings: Findings) -> str:
    found = findings.records.get("operations")
    if found is None:
        return "<p>not yet counted</p>"
    kinds = ("additions", "comparisons", "multiplications", "exponentials", "random_bits")
    rows = []
    for row in found["rows"]:
        name = row["unit"] + (f", {row['site']} noise" if row["site"] else "")
        for key, samples in (("one_sample", 1), ("all_samples", row["samples"])):
            if key == "one_sample" or samples > 1:
                counts = [amount(row[key][kind]) for kind in kinds]
                rows.append([f"{row['data']}, {row['network']}", name, str(samples), *counts])
    head = ["network", "units", "samples", *(kind.replace("_", " ") for kind in kinds)]
    return (
        "<p>Counted from the modules; products with ±1 are additions, what precedes the first draw is computed once "
        "for all samples, blanked-out inputs count as if they were added.</p>" + _grid("operations", head, rows)
    )


def _settings(findings: Findings) -> str:
    rows = []
    for name, run in findings.runs.items():
        parts = run.get("parts") or [run]
        first = parts[0]
        versions = first.get("versions", {})
        rows.append(
            [
                name + (" (quick)" if run.get("quick") else ""),
                ", ".join(_differences(first.get("recipe") or {})),
                ", ".join(dict.fromkeys(str(part.get("hardware")) for part in parts)),
                duration(run.get("seconds") or 0),
                " ".join(f"{package} {version}" for package, version in versions.items()),
                (first.get("commit") or "–")[:12],
            ]
        )
    if not rows:
        return "<p>No run is in results/paper yet.</p>"
    return _grid(
        "settings", ["run", "settings that are not the default", "hardware", "time", "versions", "commit"], rows
    )


def _differences(recipe: dict[str, Any]) -> Iterator[str]:
    plain = Recipe().to_dict()
    for name, value in recipe.items():
        if name in _ALWAYS or value != plain.get(name):
            yield f"{name} {value}"


def _section(anchor: str, title: str, body: str) -> str:
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>{body}</section>'


def _grid(name: str, head: Sequence[str], rows: Sequence[Sequence[str]], escaped: bool = False) -> str:
    cells = (
        "<tr>" + "".join(f"<td>{cell if escaped else escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    top = "".join(f'<th scope="col">{escape(each)}</th>' for each in head)
    body = "".join(cells)
    return f'<div class="wide"><table id="grid-{name}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


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
{body}
</body>
</html>
"""
