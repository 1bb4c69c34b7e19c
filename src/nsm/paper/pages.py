"""The page of claims and the README's table, made from results/: ``python -m nsm.paper.pages`` writes both."""

import re
from pathlib import Path
from typing import Any

from nsm.paper import figure_percentiles
from nsm.paper.claims import RULES_WRITTEN, verdicts
from nsm.paper.findings import (
    ABBREVIATIONS,
    BETTER,
    EQUAL,
    MEANING,
    WORSE,
    Findings,
    difference,
    gather,
    mark,
    notes,
    of_the_paper,
    ours,
)
from nsm.paper.showing import RESULTS
from nsm.paper.verdict import Verdict

BEGIN, END = "<!-- from results/paper.json: begin -->", "<!-- from results/paper.json: end -->"


def claims_page(findings: Findings, results: Path = RESULTS) -> str:
    """docs/paper.md: every claim with its verdict, then every table."""
    judged = verdicts(findings)
    lines = [
        "# What the paper says, and what was found",
        "",
        "*Inherent Weight Normalization in Stochastic Neural Networks* (Detorakis, Dutta, Khanna, Jerry, Datta and",
        "Neftci, NeurIPS 2019), claim by claim and row by row. This page is written by `python -m nsm.paper.pages`",
        "from the files in `results/`; `nsm report` makes a page with all figures and settings. Verdicts follow the",
        "rule that stands with each claim; ± is one standard error over seeds, where n = 1 that of a share of the test",
        "inputs.",
        "",
        RULES_WRITTEN,
        "",
        "| claim | verdict | found |",
        "|---|---|---|",
        *(f"| {claim.title} | **{claim.verdict}**{_short(claim)} | {_cell(claim.found)} |" for claim in judged),
        "",
    ]
    for claim in judged:
        sources = ", ".join(_link(source, results) for source in claim.sources)
        lines += [
            f"## {claim.title[0].upper()}{claim.title[1:]}: {claim.verdict}",
            "",
            f"The paper: {claim.paper}",
            "",
            f"Found: {claim.found}{_short(claim)}" + (":" if claim.parts else "."),
            "",
            *(f"- {_plain(part)}" for part in claim.parts),
            *([""] if claim.parts else []),
            f"Rule: {claim.rule}. Record: {sources}.",
            "",
        ]
    run = any(row["mean"] is not None for row in findings.rows)
    lines += ["## Every row", "", *([legend(), "", *table(findings.rows)] if run else ["No row has been run yet."]), ""]
    return "\n".join(lines)


def legend() -> str:
    """What the marks mean."""
    return "; ".join(f"{sign} {MEANING[sign]}" for sign in (BETTER, EQUAL, WORSE)) + "."


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as Markdown, test errors in percent, and what a reader of some must know."""
    lines = ["| table | data | model | paper | ours | n | difference | |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        paper = "–" if row["paper"] is None else f"{row['paper']:g}"
        apart = difference(row)
        words = "–" if apart is None else f"{apart:+.2f}"
        n = row["n"] or "–"
        cells = (
            row["table"][-1],
            row["data"],
            _plain(row["model"]),
            paper,
            _cell(ours(row)),
            n,
            words,
            mark(row),
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    said = [f"- {_plain(each)}" for each in notes(rows)]
    return [*lines, "", *said] if said else lines


def readme_part(findings: Findings, results: Path = RESULTS) -> str:
    """The rows of the paper that were run, each with the best of our recipes, and one figure; between the markers."""
    theirs = of_the_paper(findings.rows)
    shown = [row for row in theirs if row["mean"] is not None]
    lines = [BEGIN, ""]
    if shown:
        said = notes([each for row in shown for each in (row, *beside(row, findings.rows))])
        lines += [
            f"Test errors in percent, ± one standard error over n seeds; {legend()} The standard error of a single "
            "network counts the chance of the test inputs alone. Of several recipes of ours beside the plain one, that "
            "with the lowest error is shown, and their number.",
            "",
            "| table | data | model | paper | plain recipe | n | | our recipe | n | |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *(_line(row, beside(row, findings.rows)) for row in shown),
            "",
            *(f"- {_plain(each)}" for each in said),
            "",
            f"{len(shown)} rows of the paper were run (two for its one of scaled weights), {len(theirs) - len(shown)} "
            "were not; [docs/paper.md](docs/paper.md) says why, and has the rows of all recipes. Settings of ours were "
            "chosen on validation data with the bNSM ([results/search](results/search)), but for what is said above; "
            "those for CIFAR on CIFAR-10 with networks from scratch, Muon's in runs of 60 epochs.",
            "",
            _plain(ABBREVIATIONS),
        ]
    else:
        lines.append("No row of the paper has been run yet.")
    lines.append("")
    figure = results / "figures" / "figure-percentiles.png"
    if "percentiles" in findings.records and figure.exists():
        text = "Percentiles of the input to the last hidden layer while learning, NSM against StNN"
        said = figure_percentiles.caption(findings.records["percentiles"])
        lines += [f"![{text}](results/figures/{figure.name})", "", _plain(said), ""]
    return "\n".join([*lines, END])


def beside(row: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of ours that were run and stand beside one of the paper, the one with the lowest error first."""
    found = [each for each in rows if each["own"] and each["mean"] is not None and each["paper"] is not None]
    found = [each for each in found if (each["data"], named(each["model"])[0]) == (row["data"], row["model"])]
    return sorted(found, key=lambda each: each["mean"])


def named(model: str) -> tuple[str, str]:
    """The paper's name of a model, and the recipe that ours adds to it.

    >>> named("bNSM*, Muon"), named("NSM, harder inputs, scaled (weights)"), named("dCNN")
    (('bNSM*', 'Muon'), ('NSM scaled (weights)', 'harder inputs'), ('dCNN', ''))
    """
    name, *words = model.split(", ")
    scaled = [word for word in words if word.startswith("scaled ")]
    return " ".join([name, *scaled]), ", ".join(word for word in words if word not in scaled)


def _line(plain: dict[str, Any], tuned: list[dict[str, Any]]) -> str:
    """A row of the paper, run by the plain recipe and by the best of ours."""
    cells = [plain["table"][-1], plain["data"], _plain(plain["model"]), f"{plain['paper']:g}"]
    cells += [ours(plain), str(plain["n"]), mark(plain)]
    if tuned:
        chosen = f"of {len(tuned)}: " * (len(tuned) > 1) + named(tuned[0]["model"])[1]
        cells += [f"{ours(tuned[0])} ({chosen})", str(tuned[0]["n"]), mark(tuned[0])]
    return "| " + " | ".join(map(_cell, [*cells, "", "", ""][:10])) + " |"


def with_part(readme: str, part: str) -> str:
    """The README with what stands between the markers replaced."""
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.S)
    if not pattern.search(readme):
        raise ValueError(f"Expected argument `readme` to hold {BEGIN} and {END}, but got neither")
    return pattern.sub(lambda _: part, readme)


def main(root: Path = Path()) -> None:
    """Write docs/paper.md, and the README's part."""
    results = root / RESULTS
    findings = gather(results)
    (root / "docs" / "paper.md").write_text(claims_page(findings, results))
    readme = root / "README.md"
    readme.write_text(with_part(readme.read_text(), readme_part(findings, results)))


def _short(claim: Verdict) -> str:
    return " (short version)" if claim.quick else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _plain(text: str) -> str:
    """With stars that are stars."""
    return text.replace("*", "\\*")


def _link(source: str, results: Path) -> str:
    return f"[{source}](../results/{source})" if (results / source).exists() else f"{source} (not there yet)"


if __name__ == "__main__":
    main()
