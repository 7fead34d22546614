"""`radixserve keygen`: key pairs for tcp://, the server's own and tenants'."""

from __future__ import annotations

from pathlib import Path

import click

from radixserve.keys import KeyFileError, KeyPair, new_pair, read_pair, write_pair
from radixserve.tenants.edit import add_curve_key
from radixserve.tenants.file import TenantsFileError
from radixserve.tenants.store import update


@click.command()
@click.argument("path", required=False, metavar="[FILE]", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--tenant", "name", default="", help="Make a client's pair, and let its key in as this tenant of the tenants file.")
@click.option(
    "--file",
    "tenants",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("tenants.toml"),
    show_default=True,
    help="The tenants file.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--show", is_flag=True, help="Print the public key of a file that is there.")
def keygen(path: Path | None, name: str, tenants: Path, force: bool, show: bool) -> None:
    """Write a new CURVE key pair to FILE (server.keys, or NAME.keys with --tenant) and print its public key."""
    if show and (name or force):
        raise click.UsageError("--show changes nothing: leave --tenant and --force out")
    file = path or Path(f"{name}.keys" if name else "server.keys")
    try:
        if show:
            click.echo(read_pair(file).public)
            return
        pair = new_pair()
        write_pair(file, pair, replace=force)
        if name:
            _let_in(tenants, name, file, pair)
    except KeyFileError as error:
        raise click.ClickException(str(error)) from error
    if name:
        click.echo(f"{file} lets its holder in as tenant {name!r} of {tenants}; its public key:", err=True)
    else:
        click.echo(f"{file} is for --server-keys; give its public key to clients:", err=True)
    click.echo(pair.public)


def _let_in(tenants: Path, name: str, file: Path, pair: KeyPair) -> None:
    """Write the public key to the tenants file. If that fails there is no key file either."""
    try:
        update(tenants, lambda text: add_curve_key(text, name, pair.public))
    except TenantsFileError as error:
        file.unlink(missing_ok=True)
        text = str(error)
        raise KeyFileError(text if text.startswith(f"{tenants}:") else f"{tenants}: {text}") from error
