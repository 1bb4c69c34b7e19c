"""What a run shows: a bar where there is a terminal, nothing where there is none, TensorBoard on request."""

import os
import pty
import subprocess
import sys
from dataclasses import replace

import pytest

from nsm.display import plot, progress
from nsm.training import fit
from test_training import TINY, net, tiny

CODE = """
from dataclasses import replace
from nsm.training import fit
from test_training import TINY, net, tiny
fit(net(), tiny(), replace(TINY, epochs=2), validation=tiny(9))
"""


def test_a_bar_on_a_terminal():
    leader, follower = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    environment |= {"TERM": "xterm", "COLUMNS": "160"}
    process = subprocess.Popen([sys.executable, "-c", CODE], stderr=follower, stdout=subprocess.PIPE, env=environment)
    os.close(follower)
    said = b""
    while True:
        try:
            data = os.read(leader, 4096)
        except OSError:  # what a terminal says when nobody is left on the other side
            break
        if not data:
            break
        said += data
    os.close(leader)
    assert process.communicate()[0] == b""
    assert process.returncode == 0
    text = said.decode()
    assert "epoch 2/2" in text
    assert "step 8  loss 0." in text
    assert "validation error " in text
    assert "images/s" in text


def test_quiet_without_a_terminal(capfd):
    fit(net(), tiny(), TINY, validation=tiny(9))
    assert capfd.readouterr() == ("", "")
    with progress(True, 10, 5, 1) as update:
        update(1, [0.5], [])
    assert capfd.readouterr() == ("", "")


def test_tensorboard_on_request(tmp_path):
    fit(net(), tiny(), replace(TINY, tensorboard=True), validation=tiny(9), run_dir=tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("validation_error")] == [4, 8, 12]
    assert {"loss", "lr", "validation_error"} <= set(events.Tags()["scalars"])


def test_tensorboard_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(ValueError, match="Expected TensorBoard to be installed for `tensorboard=True`"):
        fit(net(), tiny(), replace(TINY, tensorboard=True), run_dir=tmp_path)


def test_the_curve_without_validation(tmp_path):
    plot([{"epoch": 1, "loss": 0.5, "validation_error": None}], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.png", "curve.svg"]


def test_the_curve_of_one_epoch_has_two_points_and_whole_epochs(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("nsm.display.save_figure", lambda figure, path: drawn.append(figure))
    plot([{"epoch": 1, "loss": 0.5, "validation_error": 0.02}], tmp_path / "curve.png")
    left, right = drawn[0].axes
    assert right.get_title() == "validation error 2.00 % after 1 epoch"
    assert all(tick == round(tick) for tick in left.get_xticks())
    heights = [axis.transData.transform((1, value))[1] for axis, value in ((left, 0.5), (right, 2.0))]
    assert abs(heights[0] - heights[1]) > 10  # pixels
