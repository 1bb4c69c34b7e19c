import json
import subprocess

import pytest

from nsm import record


def test_a_record_says_where_it_was_measured(tmp_path):
    path = tmp_path / "deep" / "result.json"
    record.write(path, {"n": 5, "seed": 0})
    found = json.loads(path.read_text())
    assert found["n"] == 5
    assert set(found) >= {"hardware", "python", "platform", "versions", "commit"}
    assert "torch" in found["versions"]
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]


def test_a_failed_write_leaves_the_old_record(tmp_path):
    path = tmp_path / "result.json"
    record.write(path, {"n": 1})
    with pytest.raises(TypeError):
        record.write(path, {"n": object()})
    assert json.loads(path.read_text())["n"] == 1


def test_the_commit_is_that_of_the_checkout(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(record, "__file__", str(tmp_path / "record.py"))
    monkeypatch.delenv("NSM_COMMIT", raising=False)
    assert record.commit() is None  # no commit yet
    (tmp_path / "record.py").write_text("")
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", *identity, "commit", "-qm", "one"], cwd=tmp_path, check=True)
    clean = record.commit()
    assert clean is not None
    assert len(clean) == 40
    (tmp_path / "record.py").write_text("changed")
    assert record.commit() == clean + "+changes"
    monkeypatch.setenv("NSM_COMMIT", "abc")  # a copy that is told what it is a copy of
    assert record.commit() == "abc"
