"""One file from the first mirror that has it whole: resumed where possible, checked, then renamed."""

import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from nsm.data.errors import DataError

Progress = Callable[[int, int | None], None]
_BLOCK = 2**16


class NetworkError(OSError):
    """A server that cannot be reached, refuses, or stops in the middle."""

    status: int | None = None  # of the answer, where there was one


class CutShort(DataError, NetworkError):
    """A file of which only the beginning came. It is kept, to be continued."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow a redirect to http(s) only, and never from https back to http."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        old, new = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if new not in ("http", "https") or (old, new) == ("https", "http"):
            raise NetworkError(f"Expected {req.full_url} to stay on {old}, but got a redirect to {newurl}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def download(
    urls: Sequence[str],
    target: Path,
    *,
    md5: str | None = None,
    sha256: str | None = None,
    limit: int = 8 * 2**30,
    progress: Progress | None = None,
    timeout: float = 30.0,
) -> str:
    """Fetch ``target`` from the first of ``urls`` that gives it whole, and return its SHA-256.

    What has arrived waits in ``target.part`` and is continued by the next call if the server still has the
    same file. ``target`` itself appears at the end, in one step, once every check has passed.

    Args:
        urls: Mirrors, tried in order.
        target: Where the file goes.
        md5: Published MD5, if there is one.
        sha256: SHA-256, if it is known.
        limit: More bytes than this are refused.
        progress: Called with the bytes so far and the total, where the server tells it.
        timeout: Seconds a server may stay silent.

    Raises:
        DataError: What came is not the file: other checksums, an HTML page, nothing at all, or its beginning only.
        OSError: No mirror answered, or ``target`` cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part, failures = target.with_name(target.name + ".part"), []
    for url in urls:
        try:
            _fetch_all(url, part, limit, progress, timeout)
            digest = _verify(part, url, md5, sha256)
        except NetworkError as error:
            failures.append(error)
            continue
        except DataError as error:
            _forget(part)  # every byte of it is in doubt
            failures.append(error)
            continue
        os.replace(part, target)
        _forget(part)
        return digest
    raise next((e for e in failures if isinstance(e, DataError)), failures[-1])


def _fetch_all(url: str, part: Path, limit: int, progress: Progress | None, timeout: float) -> None:
    """Fetch ``part`` to its end; a cut connection is taken up again as long as bytes keep coming."""
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            return _fetch(url, part, limit, progress, timeout)
        except NetworkError as error:
            if error.status == 416 and before:  # more than the server has: of another file
                _forget(part)
            elif not part.exists() or part.stat().st_size <= before:
                raise


def _fetch(url: str, part: Path, limit: int, progress: Progress | None, timeout: float) -> None:
    """One request: continue ``part`` where it is a known piece of the same file, else start anew."""
    have, validator = _resumable(url, part)
    headers = {"User-Agent": "nsm", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    with _open(url, headers, timeout) as response:
        placed = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if have and response.status == 206 and placed:
            mode = "ab"
        else:  # the server knows no ranges, or has another file by now
            have, mode = 0, "wb"
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() and len(length) < 16 else None
        if total is not None and total > limit:
            raise DataError(f"Expected {url} to have at most {limit} bytes, but got {total}")
        validator = response.headers.get("ETag", "")
        if validator.startswith("W/") or not validator:  # a weak tag promises no equal bytes
            validator = response.headers.get("Last-Modified", "")
        with part.open(mode) as file:
            _note(part).write_text(json.dumps({"url": url, "validator": validator}))
            while block := _read(response, url):
                have += len(block)
                if have > limit:
                    raise DataError(f"Expected {url} to have at most {limit} bytes, but got more")
                file.write(block)
                if progress:
                    progress(have, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and have < total:
        if not validator:
            _forget(part)  # nothing could tell that a continuation belongs to it
        raise CutShort(f"Expected {url} to send {total} bytes, but got {have} before it stopped")


def _open(url: str, headers: dict[str, str], timeout: float) -> http.client.HTTPResponse:
    opener = urllib.request.OpenerDirector()  # http and https alone: no file:, ftp: or data: handler exists
    handlers = (urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler)
    for handler in (
        *handlers,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        _Redirects,
    ):
        opener.add_handler(handler())
    try:
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        refused = NetworkError(f"Expected {url} to answer 200, but got {error.code} {error.reason}")
        refused.status = error.code
        raise refused from None
    except NetworkError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise NetworkError(f"Expected {url} to answer, but got {reason}") from None
    if response is None:
        raise NetworkError(f"Expected {url} to be an http or https address, but got another")
    return response


def _read(response: http.client.HTTPResponse, url: str) -> bytes:
    try:
        return response.read(_BLOCK)
    except (OSError, http.client.HTTPException) as error:
        raise CutShort(f"Expected {url} to send its whole file, but got {error!r}") from None


def _verify(part: Path, url: str, md5: str | None, sha256: str | None) -> str:
    """Raise unless ``part`` is the file that was meant; return its SHA-256."""
    with part.open("rb") as file:
        start = file.read(512).lstrip().lower()
    if not start:
        raise DataError(f"Expected {url} to be a file, but got 0 bytes")
    if start.startswith((b"<!doctype", b"<html")):
        raise DataError(f"Expected {url} to be a file, but got an HTML page")
    found = hash_file(part, "sha256")
    wrong = sha256 is not None and found != sha256
    if wrong or (md5 is not None and hash_file(part, "md5") != md5):
        kind, want = ("SHA-256", sha256) if wrong else ("MD5", md5)
        raise DataError(f"Expected {url} to have {kind} {want}, but got another file of SHA-256 {found}")
    return found


def hash_file(path: Path, algorithm: str = "sha256") -> str:
    """The checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _resumable(url: str, part: Path) -> tuple[int, str]:
    """How many bytes of ``url`` are in ``part``, and what tells the server which version they are of."""
    try:
        note = json.loads(_note(part).read_text())
        if note["url"] == url and note["validator"]:
            return part.stat().st_size, str(note["validator"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no note, or one that cannot be read: start anew
    return 0, ""


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)
