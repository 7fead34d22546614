"""`radixserve tenant add | rotate | reload | list`. A new key is the only thing on standard output, and it is shown once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from radixserve.tenants import fields
from radixserve.tenants.edit import add_tenant, replace_hashes
from radixserve.tenants.file import TenantsFileError, load_tenants, parse_tenants
from radixserve.tenants.keys import hash_key, new_key
from radixserve.tenants.store import update

if TYPE_CHECKING:
    from collections.abc import Callable

    from radixserve_tokenizer.config import TenantConfig

_HASH_SHOWN = 8


@click.group()
def tenant() -> None:
    """Declare who may use the engine, and hand out keys."""


def _file_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--file",
        "path",
        type=click.Path(path_type=Path, dir_okay=False),
        default=Path("tenants.toml"),
        show_default=True,
        help="The tenants file.",
    )(command)


def _checked(check: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A click callback that holds a flag to what its key of the file may be."""

    def callback(_: click.Context, __: click.Parameter, value: Any) -> Any:
        try:
            return value if value in (None, ()) else check(list(value) if isinstance(value, tuple) else value)
        except fields.FieldError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def _limit_options(command: Callable[..., None]) -> Callable[..., None]:
    options: tuple[tuple[str, Any, Callable[[Any], Any], str], ...] = (
        ("--weight", float, fields.weight, "Its part of the machine against other busy tenants' weights."),
        ("--requests-per-minute", int, fields.limit, "Programs that it may start; 0: no limit."),
        ("--tokens-per-minute", int, fields.limit, "Prompt and output tokens; 0: no limit."),
        ("--max-running", int, fields.limit, "Generations that run at once; 0: no limit."),
        ("--max-queued", int, fields.limit, "Generations that may wait; 0: no limit."),
        ("--max-programs", int, fields.limit, "Programs that may be open, idle ones too; 0: a quarter of the engine's."),
        ("--max-context", int, fields.limit, "Tokens of one sequence, prompt and output; 0: what the model allows."),
        ("--reserved-share", float, fields.share, "Part of the KV pool (0 to 1) that is kept for it."),
        ("--max-share", float, fields.share, "Part of the KV pool (0 to 1) that it may hold at most."),
    )
    for flag, kind, check, text in reversed(options):
        command = click.option(flag, type=kind, callback=_checked(check), help=text)(command)
    return command


@tenant.command()
@click.argument("name", callback=_checked(fields.name))
@_file_option
@click.option(
    "--class",
    "classes",
    multiple=True,
    type=click.Choice(fields.CLASSES),
    callback=_checked(fields.classes),
    help="Priority class that it may ask for (several times); all if left out.",
)
@_limit_options
@click.option("--admin", is_flag=True, help="It may see every tenant's account.")
def add(name: str, path: Path, classes: tuple[str, ...], admin: bool, **limits: Any) -> None:
    """Add tenant NAME and print its key, once. Only its hash is kept."""
    key = new_key()
    values: dict[str, Any] = {"name": name, "key_hashes": (hash_key(key),), "classes": classes or None, **limits}
    values["admin"] = admin or None
    written = {field: values[field] for field in fields.TENANT if values.get(field) is not None}
    _update(path, lambda text: add_tenant(text, written))
    _hand_out(key, f"tenant {name!r} is in {path}; this is its key, which is not shown again:")


@tenant.command()
@click.argument("name")
@_file_option
@click.option("--keep-old", is_flag=True, help="Let the old keys work beside the new one; rotate again to end them.")
def rotate(name: str, path: Path, keep_old: bool) -> None:
    """Give tenant NAME a new key in place of its old ones, and print it, once."""
    if not path.exists():
        raise click.ClickException(f"{path}: no such file; `radixserve tenant add NAME` makes one")
    key = new_key()
    _update(path, lambda text: replace_hashes(text, name, hash_key(key), keep_old=keep_old))
    _hand_out(key, f"the new key of tenant {name!r}, which is not shown again:")


@tenant.command("reload")
@_file_option
def reload_tenants(path: Path) -> None:
    """Check the file after a change by hand, and have a running server read it again."""
    try:
        count = len(load_tenants(path).tenants)
        os.utime(path)
    except TenantsFileError as error:
        raise click.ClickException(f"{error}; a running server keeps its tenants as they are") from error
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror or error}") from error
    click.echo(f"{path} is good: {count} tenants; a running server takes them over within a few seconds")


@tenant.command("list")
@_file_option
def list_tenants(path: Path) -> None:
    """Show the tenants of the file, with the beginnings of their keys' hashes."""
    from rich.console import Console
    from rich.table import Table

    try:
        tenants = parse_tenants(path.read_bytes().decode("utf-8"), path).tenants
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path}: {error}") from error
    except TenantsFileError as error:
        raise click.ClickException(str(error)) from error
    columns = (
        "tenant",
        "keys",
        "weight",
        "classes",
        "requests/min",
        "tokens/min",
        "running",
        "queued",
        "programs",
        "context",
        "share",
        "admin",
    )
    table = Table(*columns, box=None, pad_edge=False)
    for one in tenants:
        table.add_row(*_row(one))
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a pipe has no width, and a line must stay one
    console.print(table)


def _row(one: TenantConfig) -> tuple[str, ...]:
    counts = (
        *(one.requests_per_minute, one.tokens_per_minute),
        *(one.max_running, one.max_queued, one.max_programs, one.max_context),
    )
    return (
        one.name,
        " ".join(_keys_shown(one)) or "none",
        f"{one.weight:g}",
        "all" if set(one.classes) == set(fields.CLASSES) else " ".join(one.classes),
        *(str(count) if count else "-" for count in counts),
        f"{one.reserved_share:g} to {one.max_share:g}",
        "yes" if one.admin else "",
    )


def _keys_shown(one: TenantConfig) -> list[str]:
    hashes = [digest[:_HASH_SHOWN] for digest in one.key_hashes]
    return hashes + [f"curve:{key[:_HASH_SHOWN]}" for key in one.curve_keys]


def _update(path: Path, change: Callable[[str], str]) -> None:
    try:
        update(path, change)
    except TenantsFileError as error:
        text = str(error)
        raise click.ClickException(text if text.startswith(f"{path}:") else f"{path}: {text}") from error


def _hand_out(key: str, text: str) -> None:
    click.echo(text, err=True)
    click.echo(key)
    click.echo("a running server takes it over within a few seconds", err=True)
