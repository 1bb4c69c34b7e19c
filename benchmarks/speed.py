"""Fill the tables of docs/speed.md from the records that `nsm bench` has written to results/bench.

python benchmarks/speed.py
"""

import json
import re
from pathlib import Path

from nsm.bench import report, scaling

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "speed.md"


def tables() -> dict[str, str]:
    """The text for each pair of markers."""
    paths = sorted((ROOT / "results" / "bench").glob("*.json"))
    records = {path: json.loads(path.read_text()) for path in paths}
    goals = [report.markdown(found) for path, found in records.items() if not path.name.startswith("scaling-")]
    curves = [scaling.markdown(found) for path, found in records.items() if path.name.startswith("scaling-")]
    return {"goals": "\n\n".join(goals), "scaling": "\n\n".join(curves)}


def filled(text: str) -> str:
    """The page with its tables made anew."""
    for name, table in tables().items():
        marked = re.compile(rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.S)
        text = marked.sub(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
