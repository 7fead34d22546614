"""Rendering a checkpoint's Jinja template in Jinja's own sandbox, with the helpers that such templates expect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from radixserve_tokenizer.text.errors import TemplateError
from radixserve_tokenizer.text.inputs import INPUT_PATTERN, quote_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from jinja2 import nodes
    from jinja2.parser import Parser


class Renderer:
    """A compiled chat template. Raises `TemplateError` when the source is no template."""

    def __init__(self, source: str, constants: Mapping[str, str]) -> None:
        if INPUT_PATTERN.search(source):
            raise TemplateError("the chat template uses characters of the supplementary private-use planes", "model")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, autoescape=False, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _to_json
        self._constants = dict(constants)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template is not valid: {error}", "model") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        now: datetime,
        add_generation_prompt: bool = False,
        tools: Sequence[Any] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The rendering of all messages. Raises `TemplateError` with the template's own message where it has one."""
        names = self._constants | dict(variables or {})
        try:
            return self._template.render(
                names,
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                strftime_now=now.strftime,
                raise_exception=_raise_exception,
            )
        except _RefusedError as error:
            raise TemplateError(str(error)) from error
        except Exception as error:  # whatever a template's expressions can raise; the messages made it do so
            raise TemplateError(
                f"the model's chat template cannot render these messages: {error or type(error).__name__}"
            ) from error


class _RefusedError(Exception):
    """A template called raise_exception."""


def _raise_exception(message: object) -> None:
    raise _RefusedError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates want it: no HTML escapes. Inputs are put back later, and readable whatever `ensure_ascii` says."""
    return quote_inputs(json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys))


class _Generation(Extension):
    """`{% generation %}`: marks what the model wrote, for training. Here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 (declared so by the base class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
