import io
import stat
import tarfile
import zipfile
from typing import Any

import pytest

from nsm.data import DataError
from nsm.data.archive import extract


def make_zip(path, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def make_tar(path, members, mode: Any = "w:gz", form=tarfile.PAX_FORMAT):
    with tarfile.open(path, mode, format=form) as archive:
        for name, data in members:
            member = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


LONG = "folder/" + "n" * 150 + ".bin"
FILES = [("a.bin", b"one"), ("folder/b.bin", b"two" * 50_000), (LONG, b""), ("ünï.bin", b"x")]


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "before.txt").write_text("was here")
    yield folder
    # Whatever happened: what was there is untouched, and nothing lies beside or outside.
    assert (folder / "before.txt").read_text() == "was here"
    assert not list(folder.glob(".unpacking*"))
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "make",
    [
        make_zip,
        make_tar,
        lambda path, members: make_zip(path, members, zipfile.ZIP_STORED),
        lambda path, members: make_tar(path, members, "w"),
        lambda path, members: make_tar(path, members, form=tarfile.GNU_FORMAT),
    ],
)
def test_files_come_out(make, tmp_path, target):
    sums = extract(make(tmp_path / "archive", FILES), target)
    assert len(sums) == 4
    for name, data in FILES:
        assert (target / name).read_bytes() == data
    import hashlib

    assert sums["a.bin"] == hashlib.sha256(b"one").hexdigest()


def test_ustar_prefix_and_folders(tmp_path, target):
    name = "p" * 90 + "/" + "n" * 90
    path = make_tar(tmp_path / "archive", [(name, b"x")], form=tarfile.USTAR_FORMAT)
    assert list(extract(path, target)) == [name]
    folder = tarfile.TarInfo("empty")
    folder.type = tarfile.DIRTYPE
    assert list(extract(make_tar(tmp_path / "two", [(folder, b""), ("z", b"z")]), target)) == ["z"]


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_only_what_is_wanted(make, tmp_path, target):
    path = make(tmp_path / "archive", [*FILES, ("__MACOSX/folder/b.bin", b"junk")])
    assert list(extract(path, target, under="folder/b")) == ["folder/b.bin"]
    assert sorted(p.name for p in target.rglob("*")) == ["b.bin", "before.txt", "folder"]
    with pytest.raises(DataError, match="files under other/, but got none"):
        extract(path, target, under="other/")


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize("name", ["../evil", "/tmp/nsm-evil", "a/../../evil", "C:\\evil", "a\\..\\evil", ".."])
def test_names_that_lead_outside(make, name, tmp_path, target):
    with pytest.raises(DataError, match="to stay inside"):
        extract(make(tmp_path / "archive", [("good.bin", b"1"), (name, b"x")]), target)
    assert not (target / "good.bin").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"S"])
def test_tar_links_and_devices(kind, tmp_path, target):
    member = tarfile.TarInfo("link")
    member.type, member.linkname = kind, "/etc/passwd"
    with pytest.raises(DataError, match="plain files"):
        extract(make_tar(tmp_path / "archive", [(member, b"")]), target)


def test_zip_links(tmp_path, target):
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(DataError, match="plain files"):
        extract(make_zip(tmp_path / "archive", [(info, b"/etc/passwd")]), target)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_methods_that_cannot_be_bounded(method, tmp_path, target):
    with pytest.raises(DataError, match="plain files"):
        extract(make_zip(tmp_path / "archive", [("a", b"1")], method), target)


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_bombs(make, tmp_path, target):
    path = make(tmp_path / "archive", [("zeros", bytes(20_000_000))])
    assert path.stat().st_size < 40_000
    with pytest.raises(DataError, match="1000000 bytes, but got more"):
        extract(path, target, max_bytes=10**6)
    path = make(tmp_path / "many", [(f"{k}", b"") for k in range(101)])
    with pytest.raises(DataError, match="at most 100 entries"):
        extract(path, target, max_members=100)


def test_a_zip_whose_size_lies_cannot_grow(tmp_path, target):
    data = bytearray(make_zip(tmp_path / "archive", [("zeros", bytes(5_000_000))]).read_bytes())
    true = (5_000_000).to_bytes(4, "little")
    (tmp_path / "archive").write_bytes(data.replace(true, (10).to_bytes(4, "little")))
    with pytest.raises(DataError):
        extract(tmp_path / "archive", target, max_bytes=100)


def test_a_long_name_is_no_payload(tmp_path, target):
    path = make_tar(tmp_path / "archive", [("n" * 70_000, b"x")])
    with pytest.raises(DataError, match="short names"):
        extract(path, target)


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.filterwarnings("ignore:Duplicate name")  # zipfile's, when the test writes it
def test_twice_the_same_name(make, tmp_path, target):
    for names in (("a", "a"), ("a", "a/b"), ("a/b", "a")):
        path = make(tmp_path / "archive", [(name, b"1") for name in names])
        with pytest.raises(DataError, match="every file once"):
            extract(path, target)


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_truncated_and_flipped(make, tmp_path, target):
    data = make(tmp_path / "archive", FILES).read_bytes()
    for broken in (
        data[:-30],
        data[: len(data) // 2],
        data[:10],
        b"",
        b"PK",
        b"\x1f\x8b",
        b"plain text" * 100,
    ):
        (tmp_path / "broken").write_bytes(broken)
        with pytest.raises(DataError, match="Expected"):
            extract(tmp_path / "broken", target)
    assert sorted(p.name for p in target.iterdir()) == ["before.txt"]


def test_what_is_there_is_never_replaced(tmp_path, target):
    path = make_zip(tmp_path / "archive", [("a.bin", b"1"), ("before.txt", b"overwritten")])
    with pytest.raises(FileExistsError, match=r"before\.txt not to exist"):
        extract(path, target)
    assert not (target / "a.bin").exists()
