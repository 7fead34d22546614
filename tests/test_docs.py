"""The documents say what the code has: every flag, every public name, code that compiles, links that lead somewhere."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import radixserve
from radixserve.config import ServeConfig, load_config
from radixserve.http import engine_stats, tenant_stats, unsupported
from radixserve.http.messages_api.request import MessagesRequest
from radixserve.http.metrics import Metrics
from radixserve.http.responses_api.request import ResponsesRequest
from radixserve.http.schemas import ChatRequest, CompletionRequest
from radixserve.tenants import fields as tenant_fields
from radixserve.tenants.file import parse_tenants

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_KINDS: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: ""}


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return [code for name, code in _FENCE.findall(text) if name == language]


def names(text: str) -> set[str]:
    """Identifiers in code: between backticks, or in a block."""
    code = [*re.findall(r"`([^`\n]+)`", text), *(body for _, body in _FENCE.findall(text))]
    return {name for piece in code for name in re.findall(r"\w+", piece)}


def anchors(page: Path) -> set[str]:
    """Headings as GitHub links to them."""
    titles = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def flag_rows() -> list[str]:
    """The table of docs/serving.md as `ServeConfig` has it."""
    hints = get_type_hints(ServeConfig)
    rows: list[str] = []
    for spec in fields(ServeConfig):
        if spec.name == "model":
            continue
        kind, flag = hints[spec.name], spec.name.replace("_", "-")
        shown = f"`--{flag}`, `--no-{flag}`" if kind is bool else f"`--{flag}`"
        value = ", ".join(f"`{choice}`" for choice in get_args(kind)) or _KINDS[kind]
        default = str(spec.default).lower() if kind is bool else str(spec.default)
        rows.append(f"| {shown} | {value} | {f'`{default}`' if default else ''} | {spec.metadata['help']} |")
    return rows


def test_every_flag_is_documented_as_it_is() -> None:
    text = read("docs/serving.md")
    written = re.findall(r"^\| `--.*$", text, re.MULTILINE)
    assert written == flag_rows()


def test_the_toml_example_is_a_configuration(tmp_path: Path) -> None:
    [example] = blocks(read("docs/serving.md"), "toml")
    file = tmp_path / "serve.toml"
    file.write_text(example)
    assert load_config(file, {}) != ServeConfig()


def test_the_tenants_example_is_a_tenants_file(tmp_path: Path) -> None:
    [example] = blocks(read("docs/tenants.md"), "toml")
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "assistant.txt").write_text("You help.")
    parsed = parse_tenants(example, tmp_path / "tenants.toml")
    assert len(parsed.tenants) == len(parsed.public_prefixes) == 2


def test_every_key_of_a_tenants_file_is_documented() -> None:
    written = re.findall(r"^\| (`.*?) \|", read("docs/tenants.md"), re.MULTILINE)
    documented = [name for cell in written for name in re.findall(r"`(\w+)`", cell)]
    assert [name for name in documented if name in tenant_fields.TENANT] == list(tenant_fields.TENANT)
    assert [name for name in documented if name in tenant_fields.PUBLIC_PREFIX] == list(tenant_fields.PUBLIC_PREFIX)


def test_every_public_name_is_in_the_guide() -> None:
    missing = set(radixserve.__all__) - names(read("docs/dsl.md"))
    assert not missing


def test_every_field_of_a_request_is_documented() -> None:
    known = names(read("docs/http.md"))
    missing = {
        field for model in (ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest) for field in model.model_fields
    } - known
    assert not missing


def test_every_field_that_is_refused_is_documented() -> None:
    known = names(read("docs/http.md"))
    refused = {name for table in (unsupported._COMMON, *unsupported._TABLES.values()) for name in table}
    assert refused
    assert not refused - known


def test_every_metric_is_documented() -> None:
    metrics = Metrics()
    reported = {source: 1.0 for _, source, _ in (*engine_stats._COUNTERS, *engine_stats._GAUGES)}
    metrics.engine.update(reported, "model")
    metrics.tenants.update({"name": {}}, {}, "model")
    families = {
        family.name.removeprefix("radixserve:") + ("_total" if family.type == "counter" else "")
        for family in metrics.registry.collect()
    }
    assert len(families) > len(reported) + len(tenant_stats.COUNTERS)
    assert not families - names(read("docs/http.md"))


@pytest.mark.parametrize(
    "page",
    [
        *["README.md", "docs/dsl.md", "docs/quickstart.md", "docs/tutorial.md"],
        *sorted(f"docs/guides/{page.name}" for page in (DOCS / "guides").glob("*.md") if page.name != "README.md"),
    ],
)
def test_code_compiles(page: str) -> None:
    found = blocks(read(page), "python")
    assert found
    for number, code in enumerate(found):
        compile(code, f"{page} block {number}", "exec", dont_inherit=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken: list[str] = []
    for target in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken
