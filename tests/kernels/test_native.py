"""C is compiled once, where it can be, and trusted only where nobody else could have put it."""

import os

import pytest

from nsm import functional
from nsm.kernels import native

SOURCES = [("bits", "avx512f", "avx512bw", "avx512dq", "bmi2"), ("pictures", "avx2", "fma")]


@pytest.fixture(params=SOURCES, ids=lambda source: source[0])
def source(request, monkeypatch, tmp_path):
    """A source and the features it needs, with an empty cache of compiled ones."""
    if native.library(*request.param) is None:
        pytest.skip(f"needs a C compiler and {request.param[1:]}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.library.cache_clear()
    yield request.param
    native.library.cache_clear()


def test_the_polynomial_is_that_of_functional():
    assert functional.ERF == native.ERF
    assert functional.ERF_REACH == native.REACH


def test_a_source_is_compiled_once(source, tmp_path):
    assert native.library(*source) is not None
    (path,) = (tmp_path / "nsm" / "kernels").iterdir()
    when = path.stat().st_mtime_ns
    native.library.cache_clear()
    assert native.library(*source) is not None
    assert path.stat().st_mtime_ns == when


def test_without_a_compiler_there_is_no_library(source, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert native.library(*source) is None
    assert not list((tmp_path / "nsm" / "kernels").iterdir())


def test_a_processor_that_lacks_a_feature_gets_no_library(source):
    assert native.library(*source, "no-such-feature") is None


def test_a_folder_of_somebody_else_is_not_trusted(source, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert native.library(*source) is None
