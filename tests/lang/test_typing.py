"""What the type checkers infer for programs, and what they refuse."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = Path(__file__).parent / "typing_cases"
MARK = "# wrong"


def marked(path: Path) -> set[int]:
    return {number for number, line in enumerate(path.read_text().splitlines(), 1) if line.endswith(MARK)}


def check(*command: str) -> str:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy_errors(path: Path) -> dict[int, str]:
    out = check("mypy", "--strict", "--no-incremental", "--no-error-summary", "--hide-error-context", str(path))
    found = [re.match(r"(.+?):(\d+): error: (.*)", line) for line in out.splitlines()]
    return {int(match[2]): match[3] for match in found if match and Path(match[1]).name == path.name}


def pyright_errors(path: Path) -> dict[int, str]:
    out = json.loads(check("pyright", "--outputjson", "-p", str(ROOT), str(path)))
    return {
        item["range"]["start"]["line"] + 1: item["message"]
        for item in out["generalDiagnostics"]
        if item["severity"] == "error" and not item.get("rule", "").startswith("reportUnused")
    }


@pytest.mark.slow
@pytest.mark.parametrize("errors", [mypy_errors, pyright_errors])
def test_checkers_agree_with_the_cases(errors: object) -> None:
    assert callable(errors)
    assert errors(CASES / "right_uses.py") == {}
    wrong = CASES / "wrong_uses.py"
    assert len(marked(wrong)) > 15
    assert set(errors(wrong)) == marked(wrong)
