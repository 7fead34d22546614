"""The code of the quick start, the tutorial and the guides does what they say, against scripted engines."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import radixserve as rs

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(page.name for page in (DOCS / "guides").glob("*.md") if page.name != "README.md")
_FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LOW = {"\nGood.": -9.0, "\nBad.": -1.0}
_HIGH = {"\nGood.": -1.0, "\nBad.": -9.0}

#: What the page's `engine` answers, in order.
SCRIPTS: dict[str, list[Any]] = {
    "reading.md": ["Inlet", "A narrow inlet between cliffs.", "A narrow inlet."],
    "types.md": [
        {"city": "Oslo", "degrees": 4, "sky": "rain"},
        {"why": "6 * 7 = 42", "answer": 42},
    ],
    "values.md": ["Snow.", "A thaw.", "Snow came and went."],
    "forks.md": [
        *["no", "yes", "no"],
        *["Swim.", "Look around.", _LOW, _HIGH],
        *["Walk on.", "Sit.", _HIGH, _LOW, "By the bridge."],
    ],
    "choices.md": [" negative", {"Yes": -0.2, "No": -1.7}],
    "errors.md": [
        rs.testing.Reply('["red", "bl', finish_reason="length"),
        *["Sir Moby of the Sea", "Moby"],
        *["Moby", "The Ant", "An Ant", "Some Ant"],
    ],
    "seeds.md": ["green tea", "iced tea", "green tea", "iced tea"],
    "budgets.md": ["Rain is water", "It falls", "It goes on and on and on"],
    "testing.md": [],
    "seeing.md": ["Hello! How can I help you?", "I am well, thank you."],
    "tools.md": [{"name": "convert", "amount": 10, "to": "NOK"}, {"name": "finish", "answer": "105 crowns"}],
}

_LOOKS = {"name": "copies", "title": "Moby-Dick"}
TUTORIAL: list[Any] = [
    *["Yes, until six.", "We are closed then."],
    {"title": "Moby-Dick", "wants": "borrow"},
    *["know", "borrow", "know"],
    *[_LOOKS, {"name": "answer", "text": "Yes, there are 2."}],
    *[{"name": "answer", "text": "No."}, _LOOKS, {"name": "answer", "text": "Yes."}],
]


def run_blocks(page: Path, namespace: dict[str, Any]) -> None:
    """All blocks of a page, one after the other in one module; errors name the page's own lines."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        code = "\n" * text.count("\n", 0, match.start(1)) + match[1]
        exec(compile(code, str(page), "exec", dont_inherit=True), namespace)


def run_tests(namespace: dict[str, Any]) -> int:
    """The tests that a page defines."""
    tests = [value for name, value in namespace.items() if name.startswith("test_") and inspect.isfunction(value)]
    for test in tests:
        test()
    return len(tests)


def answers(script: list[Any]) -> list[Any]:
    """Calls by name: what they call is made by the page."""
    return [
        rs.testing.call(answer["name"], **{name: value for name, value in answer.items() if name != "name"})
        if isinstance(answer, dict) and "name" in answer
        else answer
        for answer in script
    ]


def test_each_guide_has_a_script() -> None:
    assert sorted(SCRIPTS) == PAGES
    listed = re.findall(r"^\| \[\w+\]\((\w+\.md)\)", (DOCS / "guides" / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_the_guide_is_true(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": f"guide_{page.removesuffix('.md')}"}
    with rs.testing.Scripted(answers(SCRIPTS[page])) as engine:
        namespace["engine"] = engine
        run_blocks(DOCS / "guides" / page, namespace)
    if page == "testing.md":
        assert run_tests(namespace) == 3


def test_the_tutorial_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, Any] = {"__name__": "tutorial"}
    with rs.testing.Scripted(answers(TUTORIAL)) as engine:
        namespace["engine"] = engine
        run_blocks(DOCS / "tutorial.md", namespace)
    assert run_tests(namespace) == 3
    assert capsys.readouterr().out.splitlines()[-2:] == ["No.", "Yes."]


def test_the_quick_start_is_true() -> None:
    namespace: dict[str, Any] = {"__name__": "first"}
    run_blocks(DOCS / "quickstart.md", namespace)
    with rs.testing.Scripted(["Paris.", "Yes"]) as engine:
        assert namespace["first"].run("France", engine=engine).value == "Paris. On a river: Yes."
