"""The tenants file: what is taken, what is refused and how it is said, and the commands that edit it."""

from __future__ import annotations

import os
import stat
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve.cli import main
from radixserve.tenants import TenantsFileError, load_tenants
from radixserve.tenants.edit import EditError, add_tenant, replace_hashes
from radixserve.tenants.file import parse_tenants
from radixserve.tenants.keys import hash_key, new_key
from radixserve.tenants.layout import array_tables
from radixserve.tenants.store import update

A, B, C = (digit * 64 for digit in "abc")

WHOLE = f"""
[[tenant]]
name = "search"
key_hashes = ["{A}", "{B.upper()}"]
weight = 3
classes = ["standard", "background"]
requests_per_minute = 60
tokens_per_minute = 100_000
max_running = 8
max_queued = 16
max_programs = 9
max_context = 512
reserved_share = 0.25
max_share = 0.5
admin = true

[[tenant]]
name = "chat.eu-1"

[[public_prefix]]
text = "You are helpful."

[[public_prefix]]
file = "prompts/raw.txt"
role = ""
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "tenants.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_key(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "raw.txt").write_text("Zürich\n", encoding="utf-8")
    parsed = load_tenants(write(tmp_path, WHOLE))
    first, second = parsed.tenants
    assert (first.name, first.key_hashes, first.weight, first.classes) == ("search", (A, B), 3.0, ("standard", "background"))
    assert (first.requests_per_minute, first.tokens_per_minute, first.max_running, first.max_queued) == (60, 100_000, 8, 16)
    assert (first.max_programs, first.max_context) == (9, 512)
    assert (first.reserved_share, first.max_share, first.admin) == (0.25, 0.5, True)
    assert (second.name, second.key_hashes, second.weight, second.admin) == ("chat.eu-1", (), 1.0, False)
    assert [(one.role, one.text) for one in parsed.public_prefixes] == [("system", "You are helpful."), ("", "Zürich\n")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("wieght = 2", ["unknown key 'wieght'", "weight"]),
        ("weight = 0", ["weight must be a number from 0.001 to 1000, not 0"]),
        ("weight = -1", ["weight must be"]),
        ("weight = nan", ["weight must be"]),
        ("weight = inf", ["weight must be"]),
        ("weight = true", ["weight must be"]),
        ('weight = "2"', ["weight must be"]),
        ("requests_per_minute = 1.5", ["requests_per_minute must be an integer"]),
        ("tokens_per_minute = -1", ["tokens_per_minute must be an integer"]),
        ("max_running = true", ["max_running must be an integer"]),
        ("max_queued = 99999999999999999999", ["max_queued must be an integer"]),
        ("reserved_share = 1.5", ["reserved_share must be a number from 0 to 1"]),
        ("max_share = 0", ["max_share must be above 0"]),
        ("reserved_share = 0.5\nmax_share = 0.4", ["reserved_share (0.5) must not be above max_share (0.4)"]),
        ('classes = ["fast"]', ["classes has 'fast'", "'interactive', 'standard', 'background'"]),
        ('classes = "standard"', ["classes must be a list"]),
        ("classes = []", ["classes must not be empty"]),
        ('classes = ["standard", "standard"]', ["classes has the same class twice"]),
        ('admin = "yes"', ["admin must be true or false"]),
        ('key_hashes = ["rs-secret"]', ["key_hashes number 1 is not a SHA-256"]),
        (f'key_hashes = "{C}"', ["key_hashes must be a list"]),
        (f'key_hashes = ["{C}", "{C}"]', ["key_hashes has the same hash twice"]),
        ("key_hashes = [1]", ["key_hashes must be a list"]),
        (f'key_hashes = ["{A}"]', ["is a key of tenant 'first' already"]),
        ("sub = { a = 1 }", ["unknown key 'sub'"]),
    ],
)
def test_what_a_tenant_can_not_have(tmp_path: Path, line: str, words: list[str]) -> None:
    path = write(tmp_path, f'[[tenant]]\nname = "first"\nkey_hashes = ["{A}"]\n[[tenant]]\nname = "second"\n{line}\n')
    with pytest.raises(TenantsFileError) as caught:
        load_tenants(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: tenant 'second': ")
    assert all(word in text for word in words), text
    assert "rs-secret" not in text
    assert C not in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no [[tenant]]", "radixserve tenant add"]),
        ('[[public_prefix]]\ntext = "a"', ["no [[tenant]]"]),
        ('[tenant]\nname = "a"', ["[[tenant]] in double brackets"]),
        ("tenant = 1", ["[[tenant]] in double brackets"]),
        ("[[tenants]]", ["unknown table or key 'tenants'"]),
        ("[[tenant]]\nweight = 1", ["tenant 1: name is missing"]),
        ("[[tenant]]\nname = 5", ["tenant 1: name must be"]),
        ('[[tenant]]\nname = ""', ["tenant 1: name must be"]),
        ('[[tenant]]\nname = "anonymous"', ["tenant 'anonymous': name must not be"]),
        ('[[tenant]]\nname = "a b"', ["tenant 'a b': name must be"]),
        ('[[tenant]]\nname = "a\\n"', ["name must be"]),
        (f'[[tenant]]\nname = "{"x" * 65}"', ["name must be"]),
        ('[[tenant]]\nname = "a"\n[[tenant]]\nname = "a"', ["tenant 'a': name is given to 2 tenants"]),
        ('[[tenant]]\nname = "a"\nreserved_share = 0.6\n[[tenant]]\nname = "b"\nreserved_share = 0.6', ["together is 1.2"]),
        ('[[tenant]]\nname = "a"\nname = "b"', ["overwrite"]),
        ('[[tenant]]\nname = "a"\n[[public_prefix]]\nrole = "user"', ["public_prefix 1: needs either text or file"]),
        ('[[tenant]]\nname = "a"\n[[public_prefix]]\ntext = "x"\nfile = "y"', ["needs either text or file"]),
        ('[[tenant]]\nname = "a"\n[[public_prefix]]\ntext = ""', ["text must not be empty"]),
        ('[[tenant]]\nname = "a"\n[[public_prefix]]\ntext = "x"\nrole = "tool"', ["role must be one of"]),
        ('[[tenant]]\nname = "a"\n[[public_prefix]]\ntext = "x"\npin = true', ["public_prefix 1: unknown key 'pin'"]),
        ('[[tenant]]\nname = "a"\n[[public_prefix]]\nfile = "none.txt"', ["none.txt: No such file"]),
        ('[[tenant]]\nname = "a"\n[[public_prefix]]\nfile = "latin.txt"', ["latin.txt is not UTF-8"]),
        ('[[tenant]]\nname = "a"\n[[public_prefix]]\nfile = "empty.txt"', ["empty.txt must not be empty"]),
        (
            '[[tenant]]\nname = "a"\n[[public_prefix]]\ntext = "x"\n[[public_prefix]]\ntext = "x"',
            ["public_prefix 2: the same role and text as public_prefix 1"],
        ),
    ],
)
def test_what_a_file_can_not_be(tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "empty.txt").write_bytes(b"")
    path = write(tmp_path, text)
    with pytest.raises(TenantsFileError) as caught:
        load_tenants(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(TenantsFileError, match=r"No such file.*tenant add"):
        load_tenants(tmp_path / "nothing.toml")
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(TenantsFileError, match="not UTF-8"):
        load_tenants(path)


def test_reserved_shares_may_fill_the_pool(tmp_path: Path) -> None:
    tables = "".join(f'[[tenant]]\nname = "t{i}"\nreserved_share = 0.1\n' for i in range(10))
    assert len(load_tenants(write(tmp_path, tables)).tenants) == 10


json_like = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=2),
    max_leaves=4,
)
fields = st.sampled_from(["name", "key_hashes", "weight", "classes", "max_running", "max_share", "admin", "text", "file", "role"])


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(char):08x}" for char in value if not 0xD800 <= ord(char) <= 0xDFFF) + '"'
    return repr(value)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.dictionaries(fields, json_like, max_size=4), max_size=3), st.sampled_from(["tenant", "public_prefix"]))
def test_nothing_but_its_own_error_comes_out(tables: list[dict[str, Any]], name: str) -> None:
    text = "".join(f"[[{name}]]\n" + "".join(f"{key} = {toml(value)}\n" for key, value in one.items()) for one in tables)
    message = "/nowhere/tenants.toml: "
    try:
        parsed = parse_tenants(text, Path("/nowhere/tenants.toml"))
        assert len(parsed.tenants) + len(parsed.public_prefixes) == len(tables)
    except TenantsFileError as error:
        message = str(error)
    assert message.startswith("/nowhere/tenants.toml: ")


# ---- keys ----------------------------------------------------------------------------------------------------------


def test_keys_are_long_random_and_safe_in_a_header() -> None:
    keys = {new_key() for _ in range(50)}
    assert len(keys) == 50
    for key in keys:
        assert key.startswith("rs-")
        assert len(key) >= 3 + 43
        assert key.removeprefix("rs-").replace("-", "").replace("_", "").isalnum()
        assert len(hash_key(key)) == 64
        assert key not in hash_key(key)


# ---- edits ---------------------------------------------------------------------------------------------------------

LAYOUTS = [
    '[[tenant]]\nname = "x"',
    '# top\n[[tenant]] # mine\nname = "x" # the name\nweight = 2\n',
    f'[[tenant]]\nkey_hashes = [ # keys\n  "{A}", # laptop\n  "{B}",\n]\nname = \'x\'\n\n[[tenant]]\nname = "y"\n',
    f'[[tenant]]\r\nname = "x"\r\nkey_hashes = ["{A}"]\r\n',
    '[[public_prefix]]\ntext = """\n[[tenant]]\nname = "x"\nquotes: \\""" ""\\"""""\n[[ tenant ]]\n"name" = """x"""\n"key_hashes" = [ ]\n',
    f"[[public_prefix]]\ntext = '''a '' # ]'''\n[[tenant]]\nname = \"y\"\n\t[[tenant]]\n\tname=\"x\"\n\tkey_hashes=['{A}']\n",
    f'[[tenant]]\nname = "x"\nkey_hashes = ["{A}"]\n[[public_prefix]]\ntext = "\\\\"\nrole = ""',
]


@pytest.mark.parametrize("keep_old", [False, True])
@pytest.mark.parametrize("text", LAYOUTS)
def test_rotation_changes_the_hashes_alone(text: str, keep_old: bool) -> None:
    if "quotes" in text:
        assert tomllib.loads(text)
    before = tomllib.loads(text)
    new = replace_hashes(text, "x", C, keep_old=keep_old)
    after = tomllib.loads(new)
    [old_one] = [one for one in before["tenant"] if one["name"] == "x"]
    [new_one] = [one for one in after["tenant"] if one["name"] == "x"]
    assert new_one["key_hashes"] == [C, *(old_one.get("key_hashes", []) if keep_old else [])]
    for one in (old_one, new_one):
        one.pop("key_hashes", None)
    assert after == before
    for line in text.splitlines():
        if line and "hashes" not in line and "  " not in line and line != "]":
            assert line in new.splitlines()
    if "\r\n" in text:
        assert new.count("\r\n") == new.count("\n")


def test_a_list_over_several_lines_keeps_its_layout() -> None:
    new = replace_hashes(LAYOUTS[2], "x", C, keep_old=True)
    assert f'  "{C}",' in new.splitlines()
    assert f'  "{A}", # laptop' in new.splitlines()


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ('[[tenant]]\nname = "y"', "x", "no tenant 'x'; there are 'y'"),
        ("", "x", "no tenant 'x'"),
        ('tenant = [{name = "x"}]', "x", "can't be edited"),
        ('[["ten\\u0061nt"]]\nname = "x"', "x", "can't be edited"),
    ],
)
def test_what_can_not_be_rotated(text: str, name: str, words: str) -> None:
    with pytest.raises(EditError, match=words):
        replace_hashes(text, name, C, keep_old=False)


@pytest.mark.parametrize("text", ["", "# nothing yet", *LAYOUTS])
def test_adding_appends(text: str) -> None:
    values = {"name": "new", "key_hashes": (C,), "weight": 0.5, "classes": ("standard",), "max_running": 3, "admin": True}
    new = add_tenant(text, values)
    assert text.strip() in new
    before, after = tomllib.loads(text), tomllib.loads(new)
    assert after["tenant"][:-1] == before.get("tenant", [])
    assert after["tenant"][-1] == {**values, "key_hashes": [C], "classes": ["standard"]}
    assert len(tomllib.loads(add_tenant(new, {"name": "other"}))["tenant"]) == len(after["tenant"]) + 1
    with pytest.raises(EditError, match="already"):
        add_tenant(new, {"name": "new"})


def test_adding_to_an_inline_list_is_refused() -> None:
    with pytest.raises(EditError, match="can't be edited"):
        add_tenant('tenant = [{name = "x"}]', {"name": "new"})


plain = st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs", "Cc"]), max_size=12)
strings = plain.map(toml) | plain.filter(lambda text: "'" not in text).map(lambda text: f"'{text}'")
values = st.recursive(
    strings | st.integers(-9, 9).map(str) | st.booleans().map(toml) | st.just("1979-05-27T07:32:00Z"),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + ", # ] \"'\n".join(items) + " # '\n]")
        | st.lists(inner, max_size=2).map(lambda items: "{" + ", ".join(f'"k]{i}" = {one}' for i, one in enumerate(items) if "\n" not in one) + "}")
    ),
    max_leaves=5,
)  # fmt: skip


@given(st.lists(st.lists(values, max_size=4), max_size=4))
def test_every_value_is_found_where_it_stands(tables: list[list[str]]) -> None:
    text = "".join(
        f"[other.{n}] # ]\na = 1\n\n[[tenant]]\n" + "".join(f" k{i}  = {value}  # x = 1\n" for i, value in enumerate(one))
        for n, one in enumerate(tables)
    )
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # an inline table that ended up with a newline inside
    found = array_tables(text, "tenant")
    assert len(found) == len(document.get("tenant", []))
    for spans, table in zip(found, document.get("tenant", []), strict=True):
        assert {key: tomllib.loads(f"v = {text[span.start : span.end]}")["v"] for key, span in spans.items()} == table


# ---- the file on disk ----------------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_private_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    update(path, lambda text: add_tenant(text, {"name": "a"}))
    assert mode(path) == 0o600
    path.chmod(0o640)
    update(path, lambda text: add_tenant(text, {"name": "b"}))
    assert mode(path) == 0o640
    assert os.listdir(tmp_path) == ["tenants.toml"]


def test_a_failed_edit_leaves_the_file_alone(tmp_path: Path) -> None:
    path = write(tmp_path, '[[tenant]]\nname = "a"\n')
    before = path.read_bytes()
    for broken in ("[[tenant]]\nweight = 1\n", "[[tenant"):
        with pytest.raises(TenantsFileError):
            update(path, lambda text, broken=broken: text + broken)  # type: ignore[misc]
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["tenants.toml"]
    with pytest.raises(EditError):
        update(tmp_path / "no" / "tenants.toml", lambda text: text)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "tenants.toml"
    link.symlink_to(tmp_path / "real" / "file.toml")
    update(link, lambda text: add_tenant(text, {"name": "a"}))
    assert link.is_symlink()
    assert load_tenants(tmp_path / "real" / "file.toml").tenants[0].name == "a"


def test_editors_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"

    def edit(number: int) -> None:
        update(path, lambda text: add_tenant(text, {"name": f"t{number}"}))

    threads = [threading.Thread(target=edit, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {tenant.name for tenant in load_tenants(path).tenants} == {f"t{number}" for number in range(12)}


# ---- the command line ----------------------------------------------------------------------------------------------


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["tenant", *map(str, arguments)])


def test_add_list_rotate(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    flags = ["--weight", 2, "--class", "standard", "--class", "background", "--requests-per-minute", 60]
    flags += ["--tokens-per-minute", 9000, "--max-running", 4, "--max-queued", 5, "--reserved-share", 0.25, "--max-share", 0.5]
    added = run("add", "search", "--file", path, *flags, "--admin")
    assert added.exit_code == 0, added.output
    key = added.stdout.strip()
    assert key.startswith("rs-")
    assert key not in path.read_text()
    [tenant] = load_tenants(path).tenants
    assert tenant.key_hashes == (hash_key(key),)
    assert (tenant.weight, tenant.classes, tenant.admin) == (2.0, ("standard", "background"), True)
    assert (tenant.requests_per_minute, tenant.tokens_per_minute, tenant.max_running, tenant.max_queued) == (60, 9000, 4, 5)
    assert (tenant.reserved_share, tenant.max_share) == (0.25, 0.5)

    other = run("add", "chat", "--file", path).stdout.strip()
    rotated = run("rotate", "search", "--file", path, "--keep-old").stdout.strip()
    first, second = load_tenants(path).tenants
    assert first.key_hashes == (hash_key(rotated), hash_key(key))
    assert second.key_hashes == (hash_key(other),)
    last = run("rotate", "search", "--file", path).stdout.strip()
    assert load_tenants(path).tenants[0].key_hashes == (hash_key(last),)

    listed = run("list", "--file", path)
    assert listed.exit_code == 0
    assert "search" in listed.stdout
    assert hash_key(last)[:8] in listed.stdout
    assert hash_key(last)[:12] not in listed.stdout
    assert all(one not in listed.output for one in (key, other, rotated, last))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "a b"], "letters"),
        (["add", "taken"], "already"),
        (["add", "x", "--weight", "0"], "from 0.001"),
        (["add", "x", "--max-share", "2"], "from 0 to 1"),
        (["add", "x", "--max-running", "-1"], "integer from 0"),
        (["add", "x", "--class", "fast"], "fast"),
        (["add", "x", "--reserved-share", "0.5", "--max-share", "0.25"], "must not be above"),
        (["rotate", "nobody"], "no tenant 'nobody'"),
    ],
)
def test_commands_that_fail_change_nothing_and_show_no_key(tmp_path: Path, arguments: list[str], words: str) -> None:
    path = write(tmp_path, f'[[tenant]]\nname = "taken"\nkey_hashes = ["{A}"]\n')
    before = path.read_bytes()
    result = run(*arguments, "--file", path)
    assert result.exit_code != 0
    assert words in result.output
    assert "rs-" not in result.output
    assert path.read_bytes() == before


def test_commands_without_a_file(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    for command in (["rotate", "a"], ["list"]):
        result = run(*command, "--file", path)
        assert result.exit_code != 0
        assert "none.toml" in result.output
    assert not path.exists()
