"""Of the bugs that users of other engines reported, each has a test that names its number."""

from __future__ import annotations

import re
from pathlib import Path

NUM_BUGS = 25
#: test_reported_bug_14_..., test_bug_22_..., test_04_07_...
_NAME = re.compile(r"^(?:async )?def test_(?:reported_)?(?:bug_)?((?:\d\d_)+)", re.MULTILINE)


def test_every_number_has_a_test() -> None:
    files = Path(__file__).parent.rglob("test_*.py")
    names = [name for file in files for name in _NAME.findall(file.read_text(encoding="utf-8"))]
    found = {int(number) for name in names for number in name.strip("_").split("_")}
    assert not set(range(1, NUM_BUGS + 1)) - found
