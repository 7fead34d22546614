"""What the type checkers infer for programs, and what they refuse."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
CASES = Path(__file__).parent / "typing_cases"
MARK = re.compile(r"  # wrong: (.+)$")


def expected(path: Path, *, pyright: bool) -> dict[int, set[str]]:
    """By line: the names of the errors that a checker must find there. Those of pyright begin with "report"."""
    found: dict[int, set[str]] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := MARK.search(line):
            names = {name for name in match[1].split(", ") if name.startswith("report") == pyright}
            assert names, f"line {number} does not say what is wrong"
            found[number] = names
    return found


def check(*command: str) -> str:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy_errors(path: Path) -> dict[int, set[str]]:
    out = check("mypy", "--strict", "--no-incremental", "--no-error-summary", "--hide-error-context", str(path))
    found: dict[int, set[str]] = {}
    for line in out.splitlines():
        match = re.match(r"(.+?):(\d+): error: .*\[([a-z-]+)\]$", line)
        if match and Path(match[1]).name == path.name:
            found.setdefault(int(match[2]), set()).add(match[3])
    return found


def pyright_errors(path: Path) -> dict[int, set[str]]:
    out = json.loads(check("pyright", "--outputjson", "-p", str(ROOT), str(path)))
    found: dict[int, set[str]] = {}
    for item in out["generalDiagnostics"]:
        if item["severity"] == "error" and not item.get("rule", "").startswith("reportUnused"):
            found.setdefault(item["range"]["start"]["line"] + 1, set()).add(item["rule"])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("errors", [mypy_errors, pyright_errors])
def test_checkers_agree_with_the_cases(errors: Callable[[Path], dict[int, set[str]]]) -> None:
    assert errors(CASES / "right_uses.py") == {}
    wrong = expected(CASES / "wrong_uses.py", pyright=errors is pyright_errors)
    assert len(wrong) > 40
    assert errors(CASES / "wrong_uses.py") == wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("mypy", "--strict", "--no-incremental"), ("pyright", "-p", str(ROOT))], ids=["mypy", "pyright"]
)
def test_the_examples_are_typed(command: tuple[str, ...]) -> None:
    examples = sorted(map(str, (ROOT / "docs" / "examples").glob("*.py")))
    assert len(examples) >= 8
    done = subprocess.run([sys.executable, "-m", *command, *examples], capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
