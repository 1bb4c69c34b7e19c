"""Evaluation, prediction of files and the demonstration, on a small network that learned for a moment."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from nsm import checkpoint, cli, data, demo, evaluation, metrics
from nsm.networks import build
from nsm.processes import Interrupted
from nsm.recipes import PI_MNIST, Recipe
from nsm.sampling import Confident, Prediction, predict
from nsm.training import fit

RECIPE = replace(PI_MNIST, epochs=1, lr=1e-3, accelerator="cpu", num_samples=2)


def some(split: str, n: int) -> data.Dataset:
    whole = data.load("mnist", split)
    return replace(whole, stored=whole.stored[:n], labels=whole.labels[:n])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two seeds on 3,000 digits."""
    folder = tmp_path_factory.mktemp("runs") / "two"
    recipe = replace(RECIPE, seeds=2)
    fit(build(recipe), some("train", 3000), recipe, validation=some("validation", 500), run_dir=folder)
    return folder


def test_evaluate_is_the_mean_over_seeds(run):
    found = evaluation.evaluate(run, num_samples=3, seed=1)
    test = data.load("mnist", "test")
    errors = []
    for member in range(2):
        network = checkpoint.load(run, member=member)
        p = predict(network, test.inputs, 3, seed=1 + member).probabilities
        row = found["members"][member]
        assert row["error"] == pytest.approx(float(metrics.error_rate(p, test.labels)))
        assert row["brier_score"] == pytest.approx(float(metrics.brier_score(p, test.labels)))
        assert row["negative_log_likelihood"] == pytest.approx(float(metrics.negative_log_likelihood(p, test.labels)))
        errors.append(row["error"])
    assert found["error"] == pytest.approx(np.mean(errors))
    assert found["standard_error"] == pytest.approx(np.std(errors, ddof=1) / math.sqrt(2))
    assert found["mean_samples"] == 3
    assert found["n"] == 10_000
    assert sum(found["reliability"]["count"]) == 20_000
    assert 0 < found["error"] < 0.5


def test_a_single_seed_has_the_standard_error_of_a_share(tmp_path):
    fit(build(RECIPE), some("train", 1000), RECIPE, run_dir=tmp_path / "one")
    found = evaluation.evaluate(tmp_path / "one", split="validation", num_samples=20, stop=Confident(0.05))
    e = found["error"]
    assert found["standard_error"] == pytest.approx(math.sqrt(e * (1 - e) / 5000))
    assert found["stop"] == 0.05
    assert 1 < found["mean_samples"] < 20


def test_windows_of_a_recording_are_averaged():
    p = torch.tensor([[0.6, 0.4], [0.1, 0.9], [0.9, 0.1], [0.8, 0.2]])
    windows = data.Dataset(
        "windows", torch.zeros(4, 1, 1, 1, dtype=torch.uint8), torch.tensor([1, 1, 0, 1]), ("a", "b"),
        recordings=torch.tensor([3, 3, 5, 9]),
    )  # fmt: skip
    one = torch.ones(4)
    row = evaluation._measure(Prediction(p, p.long(), one, one.long()), windows)
    assert row["error"] == 0.5
    assert row["error_per_recording"] == pytest.approx(1 / 3)


def test_the_command_line_evaluates_and_predicts(run, tmp_path, capsys):
    assert cli.main(["evaluate", str(run), "--num-samples", "2", "--split", "validation", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["split"] == "validation"
    for path in found["pictures"]:
        assert path.startswith(str(run))
    picture = np.asarray(Image.open(found["pictures"][0]).convert("L"))
    assert picture.std() > 10  # something is drawn
    assert cli.main(["evaluate", str(run), "--num-samples", "2", "--split", "validation"]) == 0
    said = capsys.readouterr().out
    assert f"{100 * found['error']:.3f} ± {100 * found['standard_error']:.3f} %" in said
    assert "standard error over 2 seeds" in said

    digits, _ = data.load("mnist", "test").batch(slice(0, 3))
    np.save(tmp_path / "digits.npy", digits.numpy())
    Image.fromarray(((1 - digits[0, 0].numpy()) * 127).astype(np.uint8)).save(tmp_path / "ink.png")
    assert cli.main(["predict", str(run), str(tmp_path / "digits.npy"), "--num-samples", "20", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["input"] for row in rows] == [f"{tmp_path}/digits.npy[{k}]" for k in range(3)]
    truth = predict(checkpoint.load(run), digits, 20, seed=0)
    assert [int(row["label"]) for row in rows] == truth.label.tolist()
    assert [row["confidence"] for row in rows] == pytest.approx(truth.confidence.tolist())
    assert cli.main(["predict", str(run), str(tmp_path / "ink.png"), "--invert", "--stop", "0.1"]) == 0
    said = capsys.readouterr().out
    assert "confidence" in said
    assert "ink.png" in said


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["evaluate", "RUN", "--stop", "2"], 2, "Expected --stop to be in (0, 1), but got 2.0"),
        (["evaluate", "RUN", "--num-samples", "0"], 2, "Expected --num-samples to be at least 1, but got 0"),
        (["evaluate", "RUN", "--split", "all"], 2, "Expected --split to be of train, validation, test"),
        (["evaluate", "RUN", "--split", "train+train"], 2, "Expected --split to be of train, validation, test"),
        (["evaluate", "RUN", "--seed", "-1"], 2, "Expected --seed to be in 0 to 2⁶³ − 1, but got -1"),
        (["predict", "RUN", "notes.txt", "--seed", str(2**63)], 2, "Expected --seed to be in 0 to 2⁶³ − 1"),
        (["evaluate", "RUN", "--sampels", "3"], 2, "--sampels"),
        (["evaluate", "nowhere"], 4, "Expected nowhere to hold a run, but got no run.json there"),
        (["predict", "RUN"], 2, "Expected at least one FILE, but got none"),
        (["predict", "RUN", "nothing.png"], 4, "No such file or directory: nothing.png"),
        (["predict", "RUN", "notes.txt"], 3, "Expected notes.txt to be a folder or one of .npy"),
    ],
)
def test_errors_are_one_line(run, arguments, status, message, capsys):
    assert cli.main([str(run) if word == "RUN" else word for word in arguments]) == status
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_numbers_are_told_where_no_picture_can_be_drawn(run, capsys):
    words = ["evaluate", str(run), "--num-samples", "2", "--split", "validation", "--picture", "/dev/null/d.png"]
    assert cli.main(words) == 4
    said = capsys.readouterr()
    assert "standard error over 2 seeds; diagram: none" in said.out
    assert said.err.startswith("nsm: ")
    assert cli.main([*words, "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["pictures"] == []


def test_a_run_on_data_of_ones_own_is_not_measured_on_others(tmp_path, capsys):
    """Whose labels may be other ones, as here."""
    images, labels = data.load("mnist", "validation").batch(slice(0, 200))
    own = TensorDataset(images, ((labels + 1) % 10).int())  # any integers are labels
    model = build(RECIPE)
    fit(model, own, RECIPE, run_dir=tmp_path)
    for words in (["evaluate", str(tmp_path)], ["predict", str(tmp_path), "x.png"], ["resume", str(tmp_path)]):
        assert cli.main(words) == 3
        assert f"Expected {tmp_path} to have learned from mnist, but got a run of nsm.fit on TensorDataset" in (
            capsys.readouterr().err
        )
    with pytest.raises(checkpoint.CheckpointError, match=r"nsm.fit\(..., resume=True\) goes on with it"):
        evaluation.evaluate(tmp_path)
    fit(model, own, RECIPE, run_dir=tmp_path, resume=True)
    assert checkpoint.load(tmp_path)(images[:1]).shape == (1, 10)


def test_a_damaged_run_is_refused(run, tmp_path, capsys):
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in run.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    state = next(damaged.glob("state-*"))
    data_of = bytearray(state.read_bytes())
    data_of[-1] ^= 1
    state.write_bytes(data_of)
    assert cli.main(["evaluate", str(damaged)]) == 3
    assert "the file is damaged" in capsys.readouterr().err


# ------------------------------------------------------------------------- the demonstration


@pytest.fixture
def quick(monkeypatch) -> Recipe:
    recipe = replace(RECIPE, epochs=2, train_split="validation")  # the smallest split
    monkeypatch.setattr(demo, "MNIST_QUICK", recipe)
    monkeypatch.setattr(demo, "ERROR", 0.3)  # settled after a few samples
    return recipe


def test_the_demonstration_trains_measures_and_draws(quick, tmp_path, capsys):
    assert demo.main(tmp_path / "demo") == 0
    said = capsys.readouterr().out
    for part in ("epoch 2: loss", "validation error", "test error", "samples a digit", "The picture:", "nsm predict"):
        assert part in said
    picture = Image.open(tmp_path / "demo" / "demo.png")
    assert picture.width > 1000
    assert np.asarray(picture.convert("L")).std() > 20
    assert (tmp_path / "demo" / "demo.svg").exists()


def test_an_interrupted_demonstration_says_how_to_go_on(quick, tmp_path, capsys, monkeypatch):
    def cut(*_, **__):
        raise Interrupted(2, tmp_path)

    monkeypatch.setattr(demo, "train", cut)
    assert demo.main(tmp_path / "demo") == 130
    said = capsys.readouterr().err
    assert "to go on: make demo, or " in said
    assert f"nsm resume {tmp_path / 'demo'}\n" in said


def test_a_demonstration_that_cannot_be_has_one_line_to_say(quick, tmp_path, capsys):
    (tmp_path / "file").touch()
    recipe = vars(demo)["MNIST_QUICK"]  # the fixture's
    checkpoint.begin(tmp_path, replace(recipe, lr=0.5), "of another version")
    for folder, status, said in (
        (tmp_path / "file" / "demo", 4, "Not a directory"),
        (tmp_path, 2, f"with lr=0.5, but got {recipe.lr}; remove {tmp_path} to begin anew"),
    ):
        assert demo.main(folder) == status
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1


def test_rotation_keeps_states_and_turns():
    image = -torch.ones(1, 28, 28)
    image[0, 4:8, 12:16] = 1  # a spot at the top
    upright, quarter, half = demo.rotate(image, torch.tensor([0.0, 90.0, 180.0]))
    assert torch.equal(upright, image)
    assert torch.equal(half, image.flip(-1, -2))
    assert set(quarter.unique().tolist()) == {-1.0, 1.0}
    assert torch.equal(quarter, image.rot90(1, (-2, -1))) or torch.equal(quarter, image.rot90(-1, (-2, -1)))
