import doctest
from pathlib import Path


def test_the_page_says_what_happens():
    page = Path(__file__).parents[2] / "docs" / "data.md"
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert result.attempted > 15
    assert result.failed == 0
