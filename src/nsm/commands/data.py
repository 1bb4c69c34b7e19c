"""`nsm data`: what there is, fetch it, verify it, look at it."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from nsm.commands.saying import Folder, Name, UsageError, bars, check_split, find_data, open_console, print_json


def data_list(json: bool = False) -> None:
    """Show every data set, and which of them are on this machine.

    Example: nsm data list

    Args:
        json: Print JSON instead of a table.
    """
    from nsm.data.catalogue import ENTRIES
    from nsm.data.store import data_root, find_files

    root, rows = data_root(), []
    for entry in ENTRIES.values():
        there = ["train", "test"] if entry.kind == "embedded" else sorted(find_files(entry, root), reverse=True)
        rows.append(
            {
                "name": entry.name,
                "there": there,
                "shape": list(entry.shape),
                "classes": len(entry.classes),
                "values": "±1" if entry.binary else "[0,1]",
                "validation": entry.validation,
                "about": entry.about,
                "licence": entry.licence,
            }
        )
    if json:
        print_json({"root": str(root), "data": rows})
        return
    from rich import box
    from rich.table import Table

    title = f"data under {root}"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    console = open_console()
    columns = ["name", "there", *(["inputs", "classes", "validation"] if console.width >= 60 else [])]
    for column in columns + ["about"] * (console.width >= 150):
        table.add_column(column, no_wrap=column == "name", justify="right" if column == "classes" else "left")
    for row in rows:
        inputs = f"{'×'.join(map(str, row['shape']))} {row['values']}"
        validation = str(row["validation"]).split(" of ")[0]
        there = ", ".join(row["there"]) or "–"
        cells = {**row, "inputs": inputs, "there": there, "validation": validation}
        table.add_row(*(str(cells[str(column.header)]) for column in table.columns))
    console.print(table)


def data_get(name: Name, root: Folder = None, json: bool = False) -> None:
    """Fetch a data set, check every byte of it, and make it ready to load.

    A download that was cut is continued. What is already there stays as it is.

    Example: nsm data get cifar10

    Args:
        name: Which data set; `nsm data list` shows them.
        root: Folder for data. Default: NSM_DATA, else the platform's cache folder.
        json: Print JSON instead of a sentence.
    """
    entry = find_data(name)
    from nsm.data import check, get
    from nsm.data.store import data_root

    with bars() as progress:
        get(name, root, progress=progress)
        report = check(name, root, progress=progress)
    where = "the package" if entry.kind == "embedded" else str(data_root(root))
    _print_report(name, {"where": where, **report}, json)


def data_check(name: Name, root: Folder = None, json: bool = False) -> None:
    """Verify every byte of a data set: its checksums, and that it can be read.

    Example: nsm data check mnist

    Args:
        name: Which data set; `nsm data list` shows them.
        root: Folder for data. Default: NSM_DATA, else the platform's cache folder.
        json: Print JSON instead of a sentence.
    """
    find_data(name)
    from nsm.data import check

    with bars() as progress:
        report = check(name, root, progress=progress)
    _print_report(name, report, json)


def data_show(
    name: Name,
    split: str = "train",
    count: Annotated[int | None, tyro.conf.arg(metavar="NUMBER")] = None,
    output: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    root: Folder = None,
    json: bool = False,
) -> None:
    """Write a picture of a data set; of events, the frames over time.

    Example: nsm data show mnist --split test --count 50 --output digits.png

    Args:
        name: Which data set; `nsm data list` shows them.
        split: train, validation or test, or several joined by +.
        count: How many inputs. Default: 40 images, or 10 rows of frames.
        output: The PNG file. Default: NAME.png
        root: Folder for data. Default: NSM_DATA, else the platform's cache folder.
        json: Print JSON instead of a sentence.
    """
    entry = find_data(name)
    if count is not None and not 1 <= count <= 400:
        raise UsageError(f"Expected --count to be 1 to 400, but got {count}")
    if output is not None and output.suffix.lower() != ".png":
        raise UsageError(f"Expected --output to be a .png file, but got {output}")
    check_split(split)
    from nsm.data import load
    from nsm.data.montage import montage

    target = output or Path(f"{name}.png")
    with bars() as progress:
        dataset = load(name, split, root, progress=progress)
        montage(dataset, target, count or (40 if entry.shape[0] in (1, 3) else 10))
    if json:
        samples = len(dataset)
        print_json({"name": name, "split": split, "samples": samples, "picture": str(target)})
    else:
        print(f"{target}: {dataset}")


def _print_report(name: str, report: dict[str, Any], json: bool) -> None:
    """What `check` found, as JSON or as a sentence."""
    if json:
        print_json({"name": name, **report})
        return
    where = f" in {report['where']}" if "where" in report else ""
    samples = ", ".join(f"{report[part]} samples for {part}" for part in ("train", "test") if part in report)
    sums = f"{report['known']} with a known SHA-256, {report['recorded']} recorded now"
    print(f"{name}{where} is sound: {samples}; {report['files']} files, {report['bytes']} bytes, {sums}")
