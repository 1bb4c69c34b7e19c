"""Unpack zip and tar archives that nobody vouches for: into a new folder, whole or not at all."""

import errno
import gzip
import hashlib
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from nsm.data.errors import DataError

# Name, size (None for a folder), and contents, which are never longer than the size says.
Member = tuple[str, int | None, Iterator[bytes]]
_BLOCK = 2**16
_HEADER_LIMIT = 2**16  # of a long name or a pax header: a path, not a payload


def extract(
    archive: Path,
    target: Path,
    *,
    under: str = "",
    max_members: int = 200_000,
    max_bytes: int = 8 * 2**30,
    progress: Callable[[int, int | None], None] | None = None,
) -> dict[str, str]:
    """Unpack the regular files of a ``.zip``, ``.tar`` or ``.tar.gz`` into ``target``.

    Everything goes to a temporary folder first. What ``target`` already holds stays as it is: a name that is
    there before is an error, and nothing is moved.

    Args:
        archive: The file to unpack.
        target: Folder the members go to.
        under: Only members whose path begins with this; the others are passed over.
        max_members: More entries than this are refused.
        max_bytes: More unpacked bytes than this are refused.
        progress: Called with the number of files so far.

    Returns:
        SHA-256 of every file written, by its path in the archive.

    Raises:
        DataError: A broken archive, a bomb, or an entry that is a link, a device or leads outside.
        FileExistsError: ``target`` already holds a name of the archive.
    """
    target.mkdir(parents=True, exist_ok=True)
    sums: dict[str, str] = {}
    room = max_bytes
    temporary = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=target))
    try:
        for count, (name, size, blocks) in enumerate(_members(archive), start=1):
            path = _safe(name, archive)
            room -= size or 0
            if count > max_members or room < 0:
                limits = f"{max_members} entries and {max_bytes} bytes"
                raise DataError(f"Expected {archive} to hold at most {limits}, but got more")
            if size is None or not str(path).startswith(under):
                continue
            try:
                (temporary / path).parent.mkdir(parents=True, exist_ok=True)
                out = (temporary / path).open("xb")
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                got = repr(name[:80])
                raise DataError(f"Expected {archive} to name every file once, but got {got} again") from None
            with out:
                sums[str(path)] = _copy(blocks, out)
            if progress:
                progress(len(sums), None)
        if not sums:
            raise DataError(f"Expected {archive} to hold files under {under or '/'}, but got none")
        children = sorted(temporary.iterdir())
        for child in children:
            if (place := target / child.name).exists():
                raise FileExistsError(f"Expected {place} not to exist, but it is there: left untouched")
        for child in children:
            child.rename(target / child.name)
    except (zipfile.BadZipFile, zlib.error, EOFError, gzip.BadGzipFile, struct.error) as error:
        raise DataError(f"Expected {archive} to be a sound archive, but got {error}") from None
    except (NotImplementedError, RuntimeError, ValueError, OverflowError, LookupError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"Expected {archive} to be a plain archive, but got {error}") from None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise DataError(f"Expected {archive} to be a sound archive, but got an offset outside it") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return sums


def _copy(blocks: Iterator[bytes], out: IO[bytes]) -> str:
    """Write a file's contents and return their SHA-256."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
        out.write(block)
    return digest.hexdigest()


def _safe(name: str, archive: Path) -> PurePosixPath:
    """The entry's path, once it is known to stay inside."""
    path = PurePosixPath(name)
    leaves = not path.parts or path.is_absolute() or ".." in path.parts or any(c in name for c in "\\:\0")
    if leaves or len(name) > 1024 or any(len(part.encode(errors="replace")) > 255 for part in path.parts):
        raise DataError(f"Expected entries of {archive} to stay inside it, but got {name[:80]!r}")
    return path


def _members(archive: Path) -> Iterator[Member]:
    """Every entry; anything but files and folders raises."""
    with archive.open("rb") as file:
        start = file.read(4)
        file.seek(0)
        if start.startswith(b"PK"):
            yield from _zip_members(file, archive)
        elif start.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=file) as stream:
                yield from _tar_members(stream, archive)
        else:
            yield from _tar_members(file, archive)


def _zip_members(file: IO[bytes], archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(file) as opened:
        for member in opened.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            plain = kind in (0, stat.S_IFREG, stat.S_IFDIR) and not member.flag_bits & 1  # 1: encrypted
            # bzip2 and LZMA are left out: zipfile expands a block of them in memory whatever it grows to.
            if not plain or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DataError(f"Expected {archive} to hold plain files, but got {member.filename[:80]!r}")
            if member.filename.endswith("/"):
                yield member.filename, None, iter(())
            else:
                with opened.open(member) as stream:
                    yield member.filename, member.file_size, iter(lambda: stream.read(_BLOCK), b"")


def _tar_members(stream: IO[bytes] | gzip.GzipFile, archive: Path) -> Iterator[Member]:
    """Read tar headers here: the standard library's reader believes a header's size and holds it all."""

    def exactly(count: int) -> bytes:
        data = stream.read(count)
        if len(data) != count:
            raise DataError(f"Expected {archive} to be a whole tar archive, but got a truncated one")
        return data

    def number(field: bytes) -> int:
        text = field.strip(b" \0")
        if not all(c in b"01234567" for c in text):
            raise DataError(f"Expected {archive} to have octal numbers, but got {field!r}")
        return int(text or b"0", 8)

    def contents(size: int) -> Iterator[bytes]:
        for position in range(0, size, _BLOCK):
            yield exactly(min(_BLOCK, size - position))

    long_name = ""
    while (header := exactly(512)) != bytes(512):  # a block of zeros ends the archive
        if number(header[148:156]) != sum(header[:148]) + sum(header[156:]) + 8 * 32:
            raise DataError(f"Expected {archive} to have tar headers with sound checksums, but got another")
        size, kind = number(header[124:136]), header[156:157]
        if kind in (b"L", b"x", b"g"):
            if size > _HEADER_LIMIT:
                raise DataError(f"Expected {archive} to have short names, but got one of {size} bytes")
            extra = exactly(size)
            if kind == b"L":
                long_name = extra.rstrip(b"\0").decode()
            elif kind == b"x":
                long_name = _pax_path(extra, archive) or long_name
        elif kind in (b"0", b"\0", b"5"):
            prefix = header[345:500].split(b"\0")[0].decode() if header[257:263] == b"ustar\0" else ""
            name = header[:100].split(b"\0")[0].decode()
            name, long_name = long_name or (f"{prefix}/{name}" if prefix else name), ""
            body = contents(size)
            yield name, None if kind == b"5" or name.endswith("/") else size, body
            for _ in body:  # what the caller left
                pass
        else:
            raise DataError(f"Expected {archive} to hold plain files, but got an entry of type {kind!r}")
        exactly(-size % 512)


def _pax_path(extra: bytes, archive: Path) -> str:
    """The ``path`` record of a pax header; a ``size`` record would overrule the header's, and is refused."""
    path = ""
    while extra:
        length, _, _ = extra.partition(b" ")
        if not length.isdigit() or len(length) > 6 or not len(length) + 1 < int(length) <= len(extra):
            raise DataError(f"Expected {archive} to have sound pax headers, but got {extra[:20]!r}")
        key, _, value = extra[len(length) + 1 : int(length) - 1].partition(b"=")
        if key == b"size":
            raise DataError(f"Expected {archive} to have plain sizes, but got a pax one")
        if key == b"path":
            path = value.decode()
        extra = extra[int(length) :]
    return path
