"""The command line: `radixserve serve | pull | chat | bench | tenant`."""

from __future__ import annotations

import sys
import time
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import click

from radixserve import __version__
from radixserve.bench.command import bench
from radixserve.config import ConfigError, ServeConfig, load_config
from radixserve.keygen import keygen
from radixserve.tenants.commands import tenant

if TYPE_CHECKING:
    from collections.abc import Callable


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="radixserve")
def main() -> None:
    """Serve agent programs, for many tenants at once, from one language model."""


def _serve_options(command: Callable[..., None]) -> Callable[..., None]:
    """One flag for each field of `ServeConfig`; a flag that is not given leaves the file's value or the default."""
    hints = get_type_hints(ServeConfig)
    for spec in reversed([f for f in fields(ServeConfig) if f.name != "model"]):
        flag = "--" + spec.name.replace("_", "-")
        kind: Any = hints[spec.name]
        options: dict[str, Any] = {"default": None, "help": spec.metadata["help"]}
        if kind is bool:
            flag = f"{flag}/--no-{spec.name.replace('_', '-')}"
        else:
            options["type"] = click.Choice(get_args(kind)) if get_args(kind) else kind
        assert spec.default is not MISSING
        options["help"] += f" [default: {spec.default!r}]" if spec.default != "" else ""
        command = click.option(flag, spec.name, **options)(command)
    return command


@main.command()
@click.argument("model", required=False)
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), help="TOML file with any of these settings."
)
@_serve_options
def serve(model: str | None, config_file: Path | None, **flags: Any) -> None:
    """Serve MODEL over an OpenAI-compatible HTTP API."""
    given = {name: value for name, value in flags.items() if value is not None}
    if model is not None:
        given["model"] = model
    try:
        config = load_config(config_file, given)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    from radixserve.serve import run

    sys.exit(run(config))


@main.command()
@click.argument("name", default="smollm2-135m")
@click.option("--force", is_flag=True, help="Fetch it again even if it is there.")
def pull(name: str, force: bool) -> None:
    """Fetch the bundled model (by its NAME) or a hub id (org/name), so that it serves offline."""
    from radixserve import models

    started = time.monotonic()
    try:
        path = models.pull(name, force=force)
    except models.ModelError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{name}: {path} ({time.monotonic() - started:.1f} s)")


@main.command()
@click.option(
    "--url",
    default="http://127.0.0.1:8000",
    show_default=True,
    help="A running `radixserve serve`, or any OpenAI-compatible server.",
)
@click.option("--model", default="", help="Model name; empty: the first that the server lists.")
@click.option("--system", default="", help="System prompt.")
@click.option("--max-tokens", default=512, show_default=True, type=click.IntRange(1), help="Longest answer.")
@click.option("--temperature", default=0.7, show_default=True, type=click.FloatRange(0.0, 2.0), help="0 is greedy.")
@click.option("--api-key", default="", envvar="RADIXSERVE_API_KEY", help="Sent as a bearer token.")
def chat(url: str, model: str, system: str, max_tokens: int, temperature: float, api_key: str) -> None:
    """Talk to a server in the terminal."""
    from radixserve.chat import ChatError, ChatSession, converse

    try:
        converse(ChatSession(url, model=model, system=system, max_tokens=max_tokens, temperature=temperature, api_key=api_key))
    except ChatError as error:
        raise click.ClickException(str(error)) from error


main.add_command(keygen)
main.add_command(tenant)
main.add_command(bench)


if __name__ == "__main__":
    main()
