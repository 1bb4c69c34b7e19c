"""The command line as a user meets it: a process, its output, its exit status."""

import contextlib
import functools
import hashlib
import http.server
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from data import samples
from data.real import real
from nsm import cli
from nsm.data import catalogue, load

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "COLUMNS": "100"}


def nsm(*arguments, **environment):
    """Run the program; nothing it says may ever be a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "nsm", *arguments],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, **environment},
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    return done


def fails(status, *arguments, **environment):
    """Run what must fail: that status, nothing on stdout, one line on stderr, which is returned."""
    done = nsm(*arguments, **environment)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("nsm: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_help_is_quick_and_needs_no_torch():
    code = "import sys, nsm.cli; nsm.cli.main(sys.argv[1:]); assert not {'torch', 'rich'} & set(sys.modules)"
    for arguments in (["--help"], ["data", "--help"], ["data", "list", "--json"], ["--version"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], env=ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        assert nsm("--help").returncode == 0
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.5


def test_help_teaches():
    assert "nsm data get cifar10" in nsm("--help").stdout
    assert "verify" in nsm("data", "--help").stdout.lower()
    for command in ("list", "get", "check", "show"):
        done = nsm("data", command, "--help")
        assert done.returncode == 0
        assert f"Example: nsm data {command}" in done.stdout
    assert nsm("--version").stdout == "0.1.0\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dta"], "but got dta; did you mean data?"),
        (["data", "lst"], "but got lst; did you mean list?"),
        (["data", "get", "cifar-10"], "but got 'cifar-10'; did you mean cifar10?"),
        (["data", "check", "zzz"], "but got 'zzz'\n"),
        (["data", "get"], "NAME"),
        (["data", "get", "mnist", "--jsn"], "--jsn"),
        (["data", "show", "mnist", "--count", "x"], "--count"),
        (["data", "show", "mnist", "--count", "0"], "1 to 400, but got 0"),
        (["data", "show", "mnist", "--split", "tset"], "but got tset"),
    ],
)
def test_wrong_words(arguments, said):
    assert said in fails(2, *arguments)


@pytest.mark.parametrize("both", [True, False])
def test_wrong_words_on_a_terminal(both):
    """Where stdout is one, what is said is not coloured, wherever stderr goes."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "nsm", "train", "mnist-quick", "--epohcs", "3"]
    environment = {**ENVIRONMENT, "TERM": "xterm-256color"}
    said = theirs if both else subprocess.PIPE
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=said, env=environment) as process:
        _, err = process.communicate(timeout=60)
        err = os.read(ours, 10_000).replace(b"\r\n", b"\n") if both else err
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 2
    expected = "nsm: Unrecognized options: --epohcs, 3; did you mean --epochs? (see nsm train mnist-quick --help)\n"
    assert err.decode() == expected


def test_no_command_is_a_usage_error():
    for arguments in ([], ["data"]):
        done = nsm(*arguments)
        assert done.returncode == 2
        assert "usage: nsm" in done.stdout


def test_list(tmp_path):
    samples.write_cifar(tmp_path)
    text = nsm("data", "list", NSM_DATA=str(tmp_path)).stdout
    assert all(name in text for name in catalogue.names())
    rows = json.loads(nsm("data", "list", "--json", NSM_DATA=str(tmp_path)).stdout)
    assert rows["root"] == str(tmp_path)
    there = {row["name"]: row["there"] for row in rows["data"]}
    assert there["mnist"] == there["cifar10"] == ["train", "test"]
    assert there["cifar100"] == []


def test_check(tmp_path):
    samples.write_cifar(tmp_path)
    text = nsm("data", "check", "cifar10", "--root", str(tmp_path)).stdout
    assert "cifar10 is sound: 20 samples for train, 4 samples for test; 6 files" in text
    report = json.loads(nsm("data", "check", "cifar10", "--root", str(tmp_path), "--json").stdout)
    assert report["known"] == 6
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"short")
    assert "test_batch.bin to have SHA-256" in fails(3, "data", "check", "cifar10", "--root", str(tmp_path))
    assert "run `nsm data get cifar100`" in fails(4, "data", "check", "cifar100", "--root", str(tmp_path))


def test_show(tmp_path):
    picture = tmp_path / "digits.png"
    done = nsm("data", "show", "mnist", "--split", "test", "--count", "5", "--output", str(picture))
    assert f"{picture}: Dataset(mnist test: 10000 inputs" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["digits.png"]
    assert "nowhere" in fails(4, "data", "show", "mnist", "--output", str(tmp_path / "nowhere" / "a.png"))


def test_show_events(tmp_path):
    samples.write_aedat(tmp_path / "dvsgesture")
    picture = tmp_path / "frames.png"
    arguments = ["--root", str(tmp_path), "--output", str(picture), "--json"]
    assert json.loads(nsm("data", "show", "dvsgesture", *arguments).stdout)["samples"] == 6
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_get_what_is_embedded():
    assert "mnist in the package is sound" in nsm("data", "get", "mnist").stdout


def test_get_what_has_no_address(tmp_path):
    assert "no public address" in fails(4, "data", "get", "emnist-letters-unofficial", "--root", str(tmp_path))


def publish(folder):
    """Tiny sets packed as their publishers pack them; returns {name: {file: path}}."""
    raw = folder / "raw"
    samples.write_cifar(raw)
    samples.write_cifar(raw, classes=100)
    samples.write_idx(raw / "fashion")
    samples.write_idx(raw / "gzip", "emnist-letters-", first=1, classes=26, stem="test")
    samples.write_idx(raw / "gzip", "emnist-digits-", stem="test")
    samples.write_nmnist(raw)
    samples.write_tonic(raw)
    for archive, inside in (
        ("cifar-10-binary.tar.gz", "cifar-10-batches-bin"),
        ("cifar-100-binary.tar.gz", "cifar-100-binary"),
        ("ibmGestureTrain.tar.gz", "ibmGestureTrain"),
        ("ibmGestureTest.tar.gz", "ibmGestureTest"),
    ):
        with tarfile.open(folder / archive, "w:gz") as tar:
            tar.add(raw / inside, inside)
    for archive, inside in (("gzip.zip", "gzip"), ("train.zip", "Train"), ("test.zip", "Test")):
        with zipfile.ZipFile(folder / archive, "w") as zipped:
            zipped.writestr("__MACOSX/._junk", b"")
            for path in sorted((raw / inside).rglob("*.*")):
                zipped.write(path, path.relative_to(raw))
    for path in (raw / "fashion").iterdir():
        path.rename(folder / path.name)


@contextlib.contextmanager
def serving(folder):
    """The address of a server of the files in a folder."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A server with tiny sets under the published names, and a catalogue that points to it."""
    published = tmp_path / "published"
    publish(published)
    with serving(published) as home:
        for name, entry in catalogue.ENTRIES.items():
            if name == "mnist-grey":
                continue  # its SHA-256 are known: no copy of other digits could pass for it
            downloads = []
            for item in entry.downloads:
                path = published / item.file.split("/")[-1]
                md5 = hashlib.md5(path.read_bytes()).hexdigest()
                downloads.append(replace(item, urls=(home + "not-there", home + path.name), md5=md5))
            monkeypatch.setitem(catalogue.ENTRIES, name, replace(entry, downloads=tuple(downloads)))
        yield published


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """A server of grey digits, which the published checksums are for or not, and a catalogue that points to it."""
    published = tmp_path / "published"
    published.mkdir()
    entry = catalogue.ENTRIES["mnist-grey"]
    with serving(published) as home:
        items = [replace(item, urls=(home + "not-there", home + Path(item.file).name)) for item in entry.downloads]
        monkeypatch.setitem(catalogue.ENTRIES, "mnist-grey", replace(entry, downloads=tuple(items)))
        yield published


def test_get_the_grey_digits(digits, tmp_path, capsys):
    """The published files, bytes and checksums and all."""
    for path in real("mnist").glob("*.gz"):
        (digits / path.name).symlink_to(path)
    root = tmp_path / "root"
    for _ in range(2):
        assert cli.main(["data", "get", "mnist-grey", "--root", str(root), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["files"], report["known"], report["recorded"]) == (4, 4, 0)
        assert (report["train"], report["test"]) == (60_000, 10_000)
    assert sorted(path.name for path in (root / "mnist").iterdir()) == sorted(path.name for path in digits.iterdir())
    grey, embedded = load("mnist-grey", "test", root), load("mnist", "test")
    assert ((grey.inputs >= 0.5).float() * 2 - 1).equal(embedded.inputs)


def test_other_grey_digits_are_refused(digits, tmp_path, capsys):
    samples.write_idx(digits)
    root = tmp_path / "root"
    assert cli.main(["data", "get", "mnist-grey", "--root", str(root)]) == 3
    known = "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    assert f"to have SHA-256 {known}, but got another file" in capsys.readouterr().err
    assert not [path for path in root.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["fashion-mnist", "emnist-letters", "cifar10", "cifar100", "nmnist", "dvsgesture"])
def test_get(mirror, tmp_path, capsys, name):
    root = tmp_path / "root"
    reports = []
    for _ in range(2):
        assert cli.main(["data", "get", name, "--root", str(root), "--json"]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0] == reports[1]
    assert reports[0]["where"] == str(root)
    assert reports[0]["recorded"] == 0  # what was downloaded has its checksums already
    assert reports[0]["known"] == reports[0]["files"] > 0
    assert reports[0]["train"] >= reports[0]["test"] > 0
    left = [path for pattern in ("*.part*", "*.tar.gz", "*.zip", "*MACOSX*") for path in root.rglob(pattern)]
    assert left == []
    assert len(load(name, "train", root)) > 0


def test_get_something_else(mirror, tmp_path, capsys):
    (mirror / "cifar-10-binary.tar.gz").write_bytes(b"<html>please log in</html>")
    assert cli.main(["data", "get", "cifar10", "--root", str(tmp_path / "root")]) == 3
    assert "HTML page" in capsys.readouterr().err
    assert not [path for path in (tmp_path / "root").rglob("*") if path.is_file()]


def test_get_a_hostile_archive(mirror, tmp_path, capsys, monkeypatch):
    path = mirror / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("../../evil")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    entry = catalogue.ENTRIES["cifar10"]
    item = replace(entry.downloads[0], md5=hashlib.md5(path.read_bytes()).hexdigest())
    monkeypatch.setitem(catalogue.ENTRIES, "cifar10", replace(entry, downloads=(item,)))
    assert cli.main(["data", "get", "cifar10", "--root", str(tmp_path / "root")]) == 3
    assert "stay inside" in capsys.readouterr().err
    assert not list(tmp_path.rglob("evil"))
    assert not list(tmp_path.rglob(".unpacking*"))


def test_get_where_nothing_can_be_written(mirror, tmp_path, capsys):
    (tmp_path / "root").write_text("a file")
    assert cli.main(["data", "get", "cifar10", "--root", str(tmp_path / "root")]) == 4
    assert capsys.readouterr().err.count("\n") == 1


def test_interrupted(tmp_path):
    """Ctrl-C in the middle of a download that never ends."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        code = (
            "import sys, dataclasses; from nsm import cli; from nsm.data import catalogue as c\n"
            "e = c.ENTRIES['cifar10']\n"
            f"d = dataclasses.replace(e.downloads[0], urls=({url!r},))\n"
            "c.ENTRIES['cifar10'] = dataclasses.replace(e, downloads=(d,))\n"
            "sys.exit(cli.main(['data', 'get', 'cifar10']))"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**ENVIRONMENT, "NSM_DATA": str(tmp_path)},
            stderr=subprocess.PIPE,
            text=True,
        )
        connection, _ = silent.accept()  # it is in the middle now
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=20)[1]
        connection.close()
    assert (process.returncode, said) == (130, "nsm: interrupted\n")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_reader_that_goes_away():
    command = f"{sys.executable} -m nsm.cli data list --json | true"
    done = subprocess.run(["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("nsm tr", "train"),
        ("nsm data sh", "show"),
        ("nsm train emnist-c", "emnist-cnn"),
        ("nsm train mnist-cnn --epochs 3 --bat", "--batch-size"),
        ("nsm train mnist-cnn --no-b", "--no-bias"),
        ("nsm evaluate runs/x --num", "--num-samples"),
        ("nsm data show mnist --cou", "--count"),
    ],
)
def test_the_shell_completes(typed, expected):
    script = subprocess.run(
        [sys.executable, "-m", "nsm", "completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    ).stdout
    words = typed.split()
    ask = f'{script}\nCOMP_WORDS=({typed})\nCOMP_CWORD={len(words) - 1}\n_nsm\necho "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected]


def test_every_option_that_completes_is_known(capsys):
    """Each word of the script is in the help of its command."""
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for typed, words in re.findall(r'"([^"]+)"\*\) words="([^"]*)"', script):
        with contextlib.suppress(SystemExit):
            cli.main([*typed.split(), "--help"])
        told = capsys.readouterr().out
        assert [word for word in words.split() if not re.search(rf"{word}\b(?!-)", told)] == []


def test_ctrl_c_while_modules_load():
    """It waits for them; nothing that loads is broken half way."""
    code = """
import os, signal, sys
import nsm.__main__
class Loading:
    def find_spec(self, name, *_):
        if name == "nsm.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Loading())
sys.argv = ["nsm", "recipes"]
sys.exit(nsm.__main__.main())
"""
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "nsm: interrupted\n")


def test_a_picture_is_a_png():
    assert "Expected --output to be a .png file, but got digits.svg" in fails(
        2, "data", "show", "mnist", "--output", "digits.svg"
    )


def test_completion_for_zsh_starts_with_its_bridge(capsys):
    assert cli.main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("autoload -U +X bashcompinit && bashcompinit")
