"""Downloads against a real HTTP server on 127.0.0.1 that misbehaves in every way a test asks for."""

import hashlib
import http.server
import threading
from email.utils import formatdate
from typing import Any

import pytest

from nsm.data import DataError
from nsm.data.download import CutShort, NetworkError, download

BODY = bytes(range(256)) * 2000
SHA256, MD5 = hashlib.sha256(BODY).hexdigest(), hashlib.md5(BODY).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = []  # (path, Range header) as they came
        self.cuts = {}  # path -> at how many bytes of each answer to stop
        self.etag = '"v1"'
        self.body = BODY

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, format, *args):
        pass

    def do_GET(self):
        server: Any = self.server
        path, wanted = self.path[1:], self.headers.get("Range", "")
        server.requests.append((path, wanted or None))
        body = server.body
        if path == "missing":
            return self.send_error(404)
        if path.startswith("to-"):
            self.send_response(302)
            self.send_header("Location", {"to-file": "file:///etc/hostname", "to-good": "/good"}[path])
            self.send_header("Content-Length", "0")
            return self.end_headers()
        body = {
            "html": b"  <!DOCTYPE html><html>please log in</html>",
            "empty": b"",
            "corrupt": body[:-1] + b"!",
            "short": body[:-1],
        }.get(path, body)
        start, ranged = 0, path != "no-range" and wanted
        if ranged and self.headers.get("If-Range") == server.etag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        if path == "dated":
            self.send_header("Last-Modified", formatdate(0, usegmt=True))
        elif path != "untagged":
            self.send_header("ETag", server.etag)
        if path != "no-length":
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        cuts = server.cuts.get(path, [])
        self.wfile.write(body[start : start + cuts.pop(0)] if cuts else body[start:])
        return None


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "data" / "file.bin"


def only(target):
    """The folder holds the file and nothing else."""
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert target.read_bytes() == BODY


def nothing(target):
    assert list(target.parent.iterdir()) == []


def test_whole_and_progress(server, target):
    seen = []
    digest = download([server.url("good")], target, md5=MD5, progress=lambda *now: seen.append(now))
    assert digest == SHA256
    only(target)
    assert seen[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_cut_in_the_middle_is_resumed(server, target):
    server.cuts["good"] = [100_000, 70_000]
    assert download([server.url("good")], target, sha256=SHA256) == SHA256
    only(target)
    assert server.requests == [("good", None), ("good", "bytes=100000-"), ("good", "bytes=170000-")]


def test_a_later_call_resumes(server, target):
    server.cuts["good"] = [100_000, 0]
    with pytest.raises(CutShort, match=r"512000 bytes, but got 100000 before it stopped"):
        download([server.url("good")], target, sha256=SHA256)
    assert not target.exists()
    assert download([server.url("good")], target, sha256=SHA256) == SHA256
    only(target)
    assert server.requests[-1] == ("good", "bytes=100000-")


def test_resumed_by_date_where_there_is_no_tag(server, target):
    server.etag = formatdate(0, usegmt=True)  # what If-Range will carry
    server.cuts["dated"] = [100_000]
    download([server.url("dated")], target, sha256=SHA256)
    only(target)
    assert server.requests[-1] == ("dated", "bytes=100000-")


def test_a_file_that_changed_meanwhile_is_fetched_anew(server, target):
    server.body, server.etag, server.cuts["good"] = BODY[::-1], '"v0"', [100_000, 0]
    with pytest.raises(NetworkError):
        download([server.url("good")], target, sha256=SHA256)
    server.body, server.etag = BODY, '"v1"'
    download([server.url("good")], target, sha256=SHA256)
    only(target)


def test_a_server_that_ignores_ranges_starts_anew(server, target):
    server.cuts["no-range"] = [100_000, 200_000]
    download([server.url("no-range")], target, sha256=SHA256)
    only(target)
    assert len(server.requests) == 3


def test_without_a_validator_nothing_is_kept(server, target):
    server.cuts["untagged"] = [100_000]
    with pytest.raises(NetworkError):
        download([server.url("untagged")], target, sha256=SHA256)
    nothing(target)


def test_a_part_longer_than_the_file(server, target):
    server.cuts["good"] = [100_000, 0]
    with pytest.raises(NetworkError):
        download([server.url("good")], target, sha256=SHA256)
    with (target.parent / "file.bin.part").open("ab") as part:
        part.write(bytes(len(BODY)))
    download([server.url("good")], target, sha256=SHA256)
    only(target)


@pytest.mark.parametrize("bad", ["missing", "html", "empty", "corrupt", "to-file", "short"])
def test_the_next_mirror(server, target, bad):
    assert download([server.url(bad), server.url("good")], target, md5=MD5) == SHA256
    only(target)


@pytest.mark.parametrize(
    ("bad", "kind", "said"),
    [
        ("missing", NetworkError, "answer 200, but got 404"),
        ("html", DataError, "an HTML page"),
        ("empty", DataError, "0 bytes"),
        ("corrupt", DataError, f"SHA-256 {SHA256}, but got another file"),
        ("short", DataError, "SHA-256"),
        ("to-file", NetworkError, "302 .*Redirection to url 'file:///etc/hostname' is not allowed"),
    ],
)
def test_what_is_said_and_what_is_left(server, target, bad, kind, said):
    target.parent.mkdir()
    target.write_bytes(b"what was there before")
    with pytest.raises(kind, match=said):
        download([server.url(bad)], target, sha256=SHA256)
    assert target.read_bytes() == b"what was there before"
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_empty_and_html_are_refused_even_where_no_checksum_is_known(server, target):
    with pytest.raises(DataError, match="0 bytes"):
        download([server.url("empty")], target)
    with pytest.raises(DataError, match="HTML"):
        download([server.url("html")], target)
    nothing(target)


def test_a_redirect_within_http_is_followed(server, target):
    download([server.url("to-good")], target, sha256=SHA256)
    only(target)


@pytest.mark.parametrize("path", ["good", "no-length"])
def test_size_limit(server, target, path):
    with pytest.raises(DataError, match="at most 1000 bytes"):
        download([server.url(path)], target, limit=1000)
    nothing(target)


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x", "nonsense"])
def test_other_schemes(target, url):
    with pytest.raises(NetworkError, match="Expected"):
        download([url], target)
    nothing(target)


def test_nobody_listens(target):
    with Server() as closed:
        url = closed.url("good")
    with pytest.raises(NetworkError, match="refused"):
        download([url], target, timeout=5)


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        download([server.url("good")], tmp_path / "file" / "x.bin")


def test_no_way_back_from_https_to_http():
    from urllib.request import Request

    from nsm.data.download import _Redirects

    redirects: Any = _Redirects()
    with pytest.raises(NetworkError, match="stay on https"):
        redirects.redirect_request(Request("https://a/b"), None, 302, "", {}, "http://a/b")
