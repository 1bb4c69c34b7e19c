"""Runs in parts: trained, resumed, joined, and not run twice."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import nsm
from data import samples
from nsm import checkpoint, record
from nsm.data import DataError
from nsm.paper import queue, runs, scaling, summary, table1
from nsm.paper.rows import ROWS, Row
from nsm.paper.runs import Quick, Run, collect, finished, from_rows, missing, part_folder, result_path, train_part
from nsm.recipes import PI_MNIST, Recipe

SMALL = Recipe(
    network="pi-mnist-mlp",
    train_split="train+validation",
    validation_split="test",
    epochs=3,
    measure_last=2,
    num_samples=2,
    lr=1e-3,
    accelerator="cpu",
)
RUN = Run(name="small", recipe=SMALL, inputs=(300, 50))


def test_a_run_is_text_and_back():
    for run in (RUN, replace(RUN, start="other", sizes=(5, 6)), *from_rows().values()):
        assert Run.from_json(run.to_json()) == run


def test_rows_are_run_on_all_training_data_and_measured_on_the_test_data():
    found = from_rows()
    assert len(found) < len(ROWS)
    for run in found.values():
        assert (run.recipe.train_split, run.recipe.validation_split) == ("train+validation", "test")
        assert run.recipe.num_samples == 100
        assert run.recipe.measure_last == (50 if run.name.startswith("pi-mnist") else 10)
    assert set(from_rows("table4")) == {"dvs-bnsm", "dvs-gnsm", "dvs-dcnn"}
    assert found["dvs-bnsm"].start == "dvs-dcnn"
    assert found["pi-mnist-nsm"].recipe.epochs == 200


def test_parts_are_joined_and_not_run_twice(tmp_path, monkeypatch):
    work, results = tmp_path / "work", tmp_path / "results"
    assert missing(RUN, results, 3) == [0, 1, 2]
    assert collect(RUN, work, results) is None
    train_part(RUN, 0, 2, work)
    collect(RUN, work, results)
    assert missing(RUN, results, 3) == [2]
    train_part(RUN, 2, 1, work)
    whole = collect(RUN, work, results)
    assert whole is not None
    assert missing(RUN, results, 3) == []
    assert queue.jobs([RUN], work=work, results=results, seeds=3, together=3) == []
    parts = finished(RUN, results)
    assert [part["seeds"] for part in parts] == [[0, 1], [2]]
    assert [part["epochs"] for part in parts] == [[2, 3], [2, 3]]
    means = [sum(errors) / 2 for part in parts for errors in part["errors"]]
    assert whole["values"] == pytest.approx(means)
    assert whole["mean"] == pytest.approx(sum(means) / 3)
    variance = sum((mean - whole["mean"]) ** 2 for mean in means) / 2
    assert whole["standard_error"] == pytest.approx((variance / 3) ** 0.5)
    # the seeds are other networks, and each error is one of 50 inputs
    assert len({tuple(part["losses"]) for part in parts}) == 2
    assert all((error / 2) % 1 == 0 for part in parts for errors in part["errors"] for error in errors)
    monkeypatch.setattr(runs, "fit", None)  # a finished part is not trained again
    train_part(RUN, 0, 2, work)
    other = replace(RUN, recipe=replace(SMALL, lr=2e-3))
    assert missing(other, results, 3) == [0, 1, 2]
    same = replace(RUN, recipe=replace(SMALL, precision="bf16-mixed", compile=True))
    assert missing(same, results, 3) == []


def test_a_seed_counts_once(tmp_path):
    work, results = tmp_path / "work", tmp_path / "results"
    for seed, seeds in ((0, 1), (0, 2)):
        train_part(RUN, seed, seeds, work)
    whole = collect(RUN, work, results)
    assert whole is not None
    assert whole["n"] == 2


def test_what_is_there_stays_whatever_is_made_again(tmp_path):
    """Two seeds that were trained apart, and once more together for their weights."""
    work, results = tmp_path / "work", tmp_path / "results"
    made = {"recipe": SMALL.to_dict(), "seconds": 1.0, "commit": "c", "versions": {}, "platform": "", "python": ""}
    for seeds, error in (((0,), 2.0), ((1,), 3.0)):
        folder = part_folder(RUN, seeds[0], 1, work)
        folder.mkdir(parents=True)
        part = {**made, "hardware": "A", "seeds": list(seeds), "errors": [[error]]}
        (folder / runs.PART).write_text(json.dumps(part))
    assert (collect(RUN, work, results) or {})["values"] == [2.0, 3.0]
    folder = part_folder(RUN, 0, 2, work)
    folder.mkdir(parents=True)
    again = {**made, "hardware": "B", "seeds": [0, 1], "errors": [[7.0], [7.0]]}
    (folder / runs.PART).write_text(json.dumps(again))
    assert (collect(RUN, work, results) or {})["values"] == [2.0, 3.0]


@pytest.mark.parametrize("changes", [{"inputs": (90, 10)}, {"inputs": None}, {"start": "another"}])
def test_a_result_from_other_inputs_or_another_start_is_not_this_ones(tmp_path, changes):
    train_part(RUN, 0, 1, tmp_path / "work")
    collect(RUN, tmp_path / "work", tmp_path)
    assert missing(RUN, tmp_path, 1) == []
    assert missing(replace(RUN, **changes), tmp_path, 1) == [0]


def test_processes_of_the_queue_have_a_session_of_their_own(tmp_path, monkeypatch):
    """So that Ctrl-C in a terminal, which reaches a whole group, does not reach them beside `_end`'s own signal."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(subprocess, "Popen", lambda words, **options: asked.update(options))
    queue._start(queue.Job(RUN, 0, 1), tmp_path, None)
    assert asked["start_new_session"] is True


def test_what_another_recipe_left_is_set_aside(tmp_path):
    """A part that is finished, then one that was cut, then one that was cut on another kind of machine."""
    run = replace(RUN, recipe=replace(SMALL, epochs=1), inputs=(100, 10))
    folder, stale = part_folder(run, 0, 1, tmp_path), tmp_path / "stale/small"
    folder.mkdir(parents=True)
    (folder / runs.PART).write_text(json.dumps({"recipe": SMALL.to_dict(), "seeds": [0]}))
    assert [job.name for job in queue.jobs([run], work=tmp_path, results=tmp_path, seeds=1, together=1)] == [
        "small seed 0"
    ]
    assert json.loads((stale / "seed-0-1" / runs.PART).read_text())["recipe"] == SMALL.to_dict()
    folder.mkdir()
    checkpoint.begin(folder, SMALL, "a network")
    runs.make_way(run, tmp_path)
    assert checkpoint.read_recipe(stale / "seed-0-2") == SMALL
    folder.mkdir()
    checkpoint.begin(folder, run.recipe, "a network")  # which a machine with a GPU has with other words
    train_part(run, 0, 1, tmp_path)
    assert checkpoint.read_recipe(stale / "seed-0-3") == run.recipe
    other = replace(run, recipe=replace(run.recipe, lr=2e-3))
    assert json.loads(train_part(other, 0, 1, tmp_path).read_text())["recipe"]["lr"] == 2e-3
    collect(other, tmp_path, tmp_path)
    assert missing(other, tmp_path, 1) == []


def test_a_result_is_written_only_if_it_is_new_and_says_where_it_was_made(tmp_path):
    work, results, path = tmp_path / "work", tmp_path / "results", tmp_path / "results/paper/small.json"
    elsewhere = {"hardware": "B", "python": "2.7", "platform": "other", "versions": {"torch": "9"}, "commit": "abc"}
    part: dict[str, Any] = {"seeds": [0], "recipe": SMALL.to_dict(), "seconds": 1.0, "errors": [[2.0]], **elsewhere}
    for seed, hardware in ((0, "B"), (1, "A")):
        folder = part_folder(RUN, seed, 1, work)
        folder.mkdir(parents=True)
        (folder / runs.PART).write_text(json.dumps({**part, "seeds": [seed], "hardware": hardware}))
    whole = collect(RUN, work, results)
    assert json.loads(path.read_text()) == whole == {**(whole or {}), **elsewhere, "hardware": "A, B"}
    written = path.stat().st_ino
    assert queue.jobs([RUN], work=work, results=results, seeds=2, together=1) == []
    assert path.stat().st_ino == written
    (part_folder(RUN, 0, 1, work) / runs.PART).write_text(json.dumps({**part, "errors": [[50.0]]}))
    collect(RUN, work, results)  # made once more, but the result has that seed
    assert path.stat().st_ino == written
    (part_folder(RUN, 0, 1, work) / runs.PART).write_text(json.dumps({**part, "seeds": [2]}))
    assert missing(RUN, results, 3) == [2]
    assert queue.jobs([RUN], work=work, results=results, seeds=3, together=1) == []


def test_a_result_of_another_recipe_is_set_aside_not_replaced(tmp_path):
    work, path = tmp_path / "work", tmp_path / "paper/small.json"
    for number, rate in enumerate((1e-3, 2e-3, 3e-3)):
        run = replace(RUN, name="small", recipe=replace(SMALL, lr=rate))
        for seed in range(3 - number):
            part = {"seeds": [seed], "recipe": run.recipe.to_dict(), "seconds": 1.0, "errors": [[2.0]]}
            made = {"hardware": "A", "python": "3", "platform": "x", "versions": {}, "commit": f"abc{seed}"}
            folder = part_folder(run, seed, 1, work / str(number))
            folder.mkdir(parents=True)
            (folder / runs.PART).write_text(json.dumps({**part, **made}))
        assert collect(run, work / str(number), tmp_path) is not None
    kept = [json.loads((path.parent / "stale" / f"small-{k}.json").read_text()) for k in (1, 2)]
    assert [each["n"] for each in (*kept, json.loads(path.read_text()))] == [3, 2, 1]
    assert kept[0]["commit"] == "abc0, abc1, abc2"


def test_data_of_another_size_are_refused(tmp_path):
    with pytest.raises(DataError, match="Expected mnist to have 5 \\+ 6 inputs for small, but got 60,000 \\+ 10,000"):
        train_part(replace(RUN, sizes=(5, 6)), 0, 1, tmp_path)


def test_a_start_from_another_run(tmp_path):
    """Each network starts from that of its own seed, as far as there are such."""
    small = replace(RUN, inputs=(100, 10))
    trained = replace(small, name="first", recipe=replace(SMALL, unit="dCNN", epochs=1))
    later = replace(small, start="first", recipe=replace(SMALL, epochs=1, initialize=False, lr=1e-12))
    with pytest.raises(FileNotFoundError, match="to hold a trained network to start from"):
        train_part(later, 0, 1, tmp_path)
    train_part(trained, 0, 2, tmp_path)
    before = [checkpoint.load(part_folder(trained, 0, 2, tmp_path), member=k) for k in (0, 1)]
    assert not torch.equal(*(network.get_parameter("out.weight") for network in before))
    train_part(later, 1, 2, tmp_path)
    both = [checkpoint.load(part_folder(later, 1, 2, tmp_path), member=k) for k in (0, 1)]
    assert not torch.equal(*(network.get_parameter("out.weight") for network in both))  # which begins afresh
    for after, start in zip(both, (before[1], before[0]), strict=True):  # seed 2 begins with the first
        mine, theirs = (normalize(net.get_parameter(f"fc1.{n}weight")) for net, n in ((after, ""), (start, "0.")))
        torch.testing.assert_close(mine, theirs)  # their lengths are free


def test_networks_to_start_from_are_trained_where_only_their_result_is(tmp_path):
    """Together with those that start from them; each from the folder of its own seed where those are apart."""
    work, results = tmp_path / "work", tmp_path / "results"
    first = replace(RUN, name="first", recipe=replace(SMALL, unit="dCNN"))
    later = replace(RUN, name="later", start="first")
    known = {"first": first, "later": later}

    def planned(wanted: list[Run], together: int) -> list[str]:
        found = queue.jobs(wanted, work=work, results=results, seeds=2, together=together, known=known)
        return [job.name for job in found]

    assert planned([later], 2) == ["first seed 0–1", "later seed 0–1"]
    assert planned([later, first], 2) == ["first seed 0–1", "later seed 0–1"]
    made = {**record.provenance(), "recipe": first.recipe.to_dict(), "seconds": 1.0}
    for seed in (0, 1):
        folder = part_folder(first, seed, 1, work)
        folder.mkdir(parents=True)
        (folder / runs.PART).write_text(json.dumps({**made, "seeds": [seed], "errors": [[1.0]]}))
    collect(first, work, results)
    assert planned([first], 2) == []
    assert planned([later, first], 2) == ["first seed 0–1", "later seed 0–1"]  # no weights beside them
    for seed in (0, 1):
        (part_folder(first, seed, 1, work) / checkpoint.CHECKPOINT).touch()
    assert planned([later], 2) == ["later seed 0", "later seed 1"]
    assert [runs._start("first", seed, work).name for seed in (0, 1, 2, 3)] == ["seed-0", "seed-1"] * 2
    known["first"] = replace(first, recipe=replace(first.recipe, lr=2e-3))  # by which those were not made
    assert planned([later], 2) == ["first seed 0–1", "later seed 0–1"]


def test_gestures_from_files_to_both_errors(tmp_path):
    """Table 4 on recordings in the published format, three windows each of which two are of one gesture."""
    samples.write_aedat(tmp_path / "dvsgesture", (1, 20, 24))
    tiny = {"epochs": 1, "measure_last": 1, "num_samples": 1, "accelerator": "cpu"}
    table = {name: replace(run, recipe=replace(run.recipe, **tiny)) for name, run in from_rows("table4").items()}
    for name in ("dvs-dcnn", "dvs-bnsm"):
        part = json.loads(train_part(table[name], 0, 1, tmp_path / "work", tmp_path).read_text())
        collect(table[name], tmp_path / "work", tmp_path / "results")
        assert (part["training_inputs"], part["test_inputs"]) == (6, 3)
        assert round(3 * part["errors"][0][0] / 100, 4) in (0, 1, 2, 3)
        assert part["errors_per_recording"][0] in (0, 50, 100)
    rows = {row["model"]: row for row in summary.rows(tmp_path / "results", table) if row["table"] == "table4"}
    assert rows["bNSM"]["mean"] == part["errors"][0][0]
    assert rows["bNSM, whole recordings"]["mean"] == part["errors_per_recording"][0]
    assert rows["bNSM, whole recordings"]["paper"] is None
    assert rows["gNSM"]["reason"].startswith("the recordings were not at hand")


@pytest.mark.slow
def test_a_part_that_was_killed_goes_on_as_a_process(tmp_path, monkeypatch):
    """The queue runs parts as processes; one killed in the middle ends as if it had not been."""
    run = replace(RUN, recipe=replace(SMALL, epochs=20, measure_last=2, save_every=2))
    words = [sys.executable, "-m", "nsm.paper.runs", run.to_json(), "--seeds", "2", "--work", str(tmp_path / "cut")]
    monkeypatch.setenv("PYTHONPATH", str(Path(nsm.__file__).parent.parent))
    process = subprocess.Popen(words)
    folder, until = part_folder(run, 0, 2, tmp_path / "cut"), time.monotonic() + 100
    while not (folder / checkpoint.CHECKPOINT).exists() or checkpoint.read(folder).progress["step"] < 10:
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / runs.PART).exists()
    said: list[str] = []
    jobs = [queue.Job(run, 0, 2)]
    left = queue.work_through(jobs, work=tmp_path / "cut", results=tmp_path / "results", say=said.append)
    assert left == []
    assert len(said) == 2
    whole = json.loads(train_part(run, 0, 2, tmp_path / "whole").read_text())
    (part,) = finished(run, tmp_path / "results")
    assert (part["errors"], part["losses"]) == (whole["errors"], whole["losses"])


@pytest.mark.slow
def test_the_queue_keeps_to_its_time_and_tells_what_failed(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(nsm.__file__).parent.parent))
    long = replace(RUN, name="long", recipe=replace(SMALL, epochs=100_000, measure_last=1, save_every=50))
    bad = replace(RUN, name="bad", sizes=(1, 1))
    work, said = tmp_path / "work", list[str]()

    def say(text: str) -> None:
        said.append(text)
        if "long seed 0: begins" in text:  # the time is up when it has learned something and the bad one has failed
            folder, log = part_folder(long, 0, 1, work), part_folder(bad, 0, 1, work).with_suffix(".log")
            until = time.monotonic() + 100
            while not ((folder / checkpoint.CHECKPOINT).exists() and "Expected mnist" in log.read_text()):
                assert time.monotonic() < until
                time.sleep(0.05)
            time.sleep(1)  # for the bad one to end

    jobs = [queue.Job(bad, 0, 1), queue.Job(long, 0, 1), queue.Job(RUN, 0, 1)]
    left = queue.work_through(jobs, work=work, results=tmp_path / "results", processes=2, minutes=0.05, say=say)
    assert sorted(left) == ["bad seed 0", "long seed 0", "small seed 0"]
    assert any("Expected mnist to have 1 + 1 inputs" in line for line in said)
    assert not any("small" in line for line in said)
    assert checkpoint.read(part_folder(long, 0, 1, work)).progress["epoch"] < 100_000


@pytest.mark.slow
def test_a_queue_that_is_ended_ends_its_processes(tmp_path, monkeypatch):
    """They save before they go, and a signal's handler is as it was."""
    monkeypatch.setenv("PYTHONPATH", str(Path(nsm.__file__).parent.parent))
    run = replace(RUN, recipe=replace(SMALL, epochs=100_000, measure_last=1, save_every=50))
    folder, before = part_folder(run, 0, 1, tmp_path), signal.getsignal(signal.SIGTERM)

    def say(text: str) -> None:
        until = time.monotonic() + 100
        while not (folder / checkpoint.CHECKPOINT).exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as end:
        queue.work_through([queue.Job(run, 0, 1)], work=tmp_path, results=tmp_path, say=say)
    assert end.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    with checkpoint.locked(folder):  # nobody trains there any more
        assert checkpoint.read(folder).progress["epoch"] < 100_000


def test_scaling_keeps_an_nsm_and_breaks_a_relu_network():
    torch.manual_seed(0)
    x = torch.randn(100, 784).sign()
    net = nsm.networks.pi_mnist_mlp(nsm.networks.bnsm)
    nsm.initialize(net, x)
    for way in ("weights and biases", "rows"):
        scaled: nn.Sequential = scaling.scale(net, way, 0.1)  # type: ignore[assignment]
        torch.testing.assert_close(scaled[1].firing_probability(x), net[1].firing_probability(x))  # type: ignore[operator]
        assert torch.equal(scaled.get_parameter("out.weight"), net.get_parameter("out.weight"))
        ratio = scaled.get_parameter("fc2.weight") / net.get_parameter("fc2.weight")
        assert (ratio.std(1) < 1e-5).all()
        assert (len(ratio.mean(1).unique()) > 100) == (way == "rows")
    other: nn.Sequential = scaling.scale(net, "weights", 0.1)  # type: ignore[assignment]
    assert torch.equal(other.get_parameter("fc1.bias"), net.get_parameter("fc1.bias"))
    assert not torch.allclose(other[1].firing_probability(x), net[1].firing_probability(x))  # type: ignore[operator]
    output: nn.Sequential = scaling.scale(net, "output too", 0.5)  # type: ignore[assignment]
    torch.testing.assert_close(output.get_parameter("out.bias"), net.get_parameter("out.bias") / 2)
    relu = nsm.networks.pi_mnist_mlp(nsm.networks.relu)
    assert not torch.allclose(scaling.scale(relu, "weights", 0.1)(x), relu(x))


def test_rows_of_a_run_whose_weights_are_scaled(tmp_path):
    work, results = tmp_path / "work", tmp_path / "results"
    run = replace(RUN, name="pi-mnist-nsm", scaled=True)
    train_part(run, 0, 2, work)
    collect(run, work, results)
    path = summary.write(results, {run.name: run})
    rows = {(row["table"], row["data"], row["model"]): row for row in json.loads(path.read_text())["rows"]}
    assert len(rows) == len(ROWS)
    plain = rows["table1", "PI MNIST", "NSM"]
    assert (plain["n"], plain["epochs"], plain["samples"], plain["last"]) == (2, 3, 2, 2)
    assert plain["paper"] == 1.36
    (part,) = finished(run, results)
    scaled = rows["table1", "PI MNIST", "NSM scaled (weights and biases)"]
    assert scaled["values"] == part["scaling"]["weights and biases"]["0.1"]
    assert (scaled["n"], scaled["last"], scaled["reason"]) == (2, 1, None)
    assert set(part["scaling"]["weights"]) == {str(factor) for factor in scaling.FACTORS}
    absent = rows["table1", "PI MNIST", "StNN"]
    assert (absent["mean"], absent["n"], absent["reason"]) == (None, 0, "not run yet")
    assert rows["table4", "DVS Gestures", "IBM EEDN"]["reason"].startswith("another system's")
    assert all((row["mean"] is None) == (row["reason"] is not None) for row in rows.values())
    small = {name: Quick((10, 5), 1, 1).of(each) for name, each in from_rows().items()}
    found = summary.rows(tmp_path / "none", small)  # reasons are those of the tables in full
    assert {row["reason"] for row in found if row["run"]} == {"not run yet"}


def test_curves_carry_the_provenance_of_their_parts_and_are_written_once(tmp_path):
    known = table1.runs()
    made = {"hardware": "H", "python": "2.7", "platform": "P", "versions": {"torch": "9"}, "commit": "abc"}
    part = {**made, "seeds": [0], "seconds": 1.0, "epochs": [1, 2], "errors": [[3.0, 2.0]], "test_inputs": 10}
    part |= {"training_inputs": 100, "scaling": {"weights": {"0.1": [4.0], "1.0": [2.0]}}}
    for name in ("pi-mnist-nsm", "pi-mnist-stnn-convergence"):
        folder = part_folder(known[name], 0, 1, tmp_path / "work")
        folder.mkdir(parents=True)
        (folder / runs.PART).write_text(json.dumps({**part, "recipe": known[name].recipe.to_dict()}))
        collect(known[name], tmp_path / "work", tmp_path)
    paths = [tmp_path / "paper/scaling.json", tmp_path / "paper/convergence.json", tmp_path / "paper.json"]
    written = []
    for _ in range(2):
        table1.finish(tmp_path, known)
        summary.write(tmp_path, known)
        written.append([path.stat().st_ino for path in paths])
    assert written[0] == written[1]
    scaled, convergence, _ = (json.loads(path.read_text()) for path in paths)
    assert scaled == {**made, "quick": False, "curves": scaled["curves"]}
    assert scaled["curves"]["NSM"]["weights"]["0.1"]["mean"] == 4
    assert convergence["curves"] == {"StNN": {"epochs": [1, 2], "errors": [[3.0, 2.0]]}}
    table1.finish(tmp_path, {name: replace(run, quick=True) for name, run in known.items()})
    assert json.loads(paths[1].read_text())["quick"]


def test_a_part_from_before_its_networks_were_to_be_scaled_is_measured_again_without_training(tmp_path):
    work, results = tmp_path / "work", tmp_path / "results"
    train_part(RUN, 0, 1, work)
    before = collect(RUN, work, results)
    run = replace(RUN, scaled=True)
    assert missing(run, results, 1) == [0]
    train_part(run, 0, 1, work)
    after = collect(run, work, results)
    assert missing(run, results, 1) == []
    assert before is not None
    assert after is not None
    (old,), (new,) = before["parts"], after["parts"]
    assert set(new["scaling"]) == set(scaling.WAYS)
    assert (new["errors"], new["losses"], new["seconds"]) == (old["errors"], old["losses"], old["seconds"])


def test_a_result_from_before_its_networks_were_to_be_scaled(tmp_path):
    """It keeps its rows and has no curve, and its seeds are to be run again."""
    run = from_rows("table1")["pi-mnist-additive"]
    assert run.scaled
    part = {"seeds": [0], "recipe": run.recipe.to_dict(), "errors": [[1.5]], "epochs": [200], "hardware": "x"}
    part |= {"commit": None, "seconds": 1.0, "training_inputs": 1, "test_inputs": 1}
    record.write(result_path(run.name, tmp_path), {"parts": [part]})
    names = {"additive noise": run.name}
    assert summary.curves(tmp_path, {run.name: run}, names, "scaling") == {}
    assert missing(run, tmp_path, 1) == [0]
    assert missing(replace(run, scaled=False), tmp_path, 1) == []
    row = next(row for row in summary.rows(tmp_path) if row["model"] == "additive noise")
    assert row["mean"] == 1.5
    record.write(result_path(run.name, tmp_path), {"parts": [{**part, "scaling": {"rows": {"0.1": [2.0]}}}]})
    assert missing(run, tmp_path, 1) == []
    assert summary.curves(tmp_path, {run.name: run}, names, "scaling")["additive noise"]["rows"]["0.1"]["mean"] == 2.0


def test_another_recipe_in_the_results_is_not_this_rows(tmp_path):
    run = replace(RUN, name="pi-mnist-nsm")
    train_part(run, 0, 1, tmp_path / "work")
    collect(run, tmp_path / "work", tmp_path)
    assert all(row["mean"] is None for row in summary.rows(tmp_path))  # the row's run has 200 epochs


def test_a_row_needs_its_fields():
    row = Row(table="table1", data="x", model="y", run="z", recipe=PI_MNIST)
    assert (row.last, row.measure, row.own) == (10, "error", False)
