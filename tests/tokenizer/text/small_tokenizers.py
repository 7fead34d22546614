"""Small tokenizers and chat templates for these tests."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from radixserve_tokenizer.text import TextTokenizer
from radixserve_tokenizer.text.tokenizer import Control
from radixserve_tokenizer.text.vocabulary import byte_level_alphabet, byte_level_bytes

if TYPE_CHECKING:
    from pathlib import Path

CONTROL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|head|>", "<|/head|>", "<|eot|>")
ADDED_TEXT = ("<think>", "</think>")
MERGES = [
    ("h", "e"),
    ("l", "l"),
    ("he", "ll"),
    ("hell", "o"),
    ("Ġ", "hello"),
    ("Ċ", "Ċ"),
    ("u", "s"),
    ("us", "er"),
    ("e", "r"),
    ("Ċ", "hello"),
    ("Ġ", "Ġ"),
]


def engine(**bpe: Any) -> Tokenizer:
    """Byte-level BPE whose vocabulary holds every byte; "\\n\\n" and "\\nhello" merge, so that cuts between pieces show."""
    tokens = [
        *CONTROL,
        *byte_level_alphabet(),
        *(left + right for left, right in sorted(MERGES, key=lambda m: len(m[0] + m[1]))),
        *ADDED_TEXT,
    ]
    merges = sorted(MERGES, key=lambda m: len(m[0] + m[1]))
    tokenizer = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges, **bpe))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED_TEXT])
    return tokenizer


def small_tokenizer(*, eos: str = "<|im_end|>", **arguments: Any) -> TextTokenizer:
    built = engine()
    vocabulary = [b""] * built.get_vocab_size()
    for token, id in built.get_vocab().items():
        if token not in CONTROL:
            vocabulary[id] = byte_level_bytes(token)
    control = {token: Control(built.token_to_id(token)) for token in CONTROL}
    return TextTokenizer(
        built,
        vocabulary,
        control,
        eos_token_ids=[control[eos].id],
        bos_token_id=control["<s>"].id,
        template_tokens={"bos_token": "<s>", "eos_token": eos},
        **arguments,
    )


def write_folder(folder: Path, **config: Any) -> Path:
    """A Hugging Face folder with the tokenizer above."""
    folder.mkdir(parents=True, exist_ok=True)
    engine().save(str(folder / "tokenizer.json"))
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>", "chat_template": CHATML} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 3}))
    return folder


def plain_rendering(source: str, messages: list[dict[str, Any]], *, tools: Any = None, add_generation_prompt: bool = True) -> str:
    """What a template renders when inputs are simply pasted in: the oracle for harmless inputs."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)

    def refuse(message: str) -> None:
        raise ValueError(message)

    return environment.from_string(source).render(
        messages=messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        bos_token="<s>",
        eos_token="<|im_end|>",
        raise_exception=refuse,
        strftime_now=datetime.now(UTC).strftime,
    )


def plain_ids(rendered: str) -> list[int]:
    """Ids of a rendering with control tokens parsed out of all of it."""
    ids: list[int] = engine().encode(rendered, add_special_tokens=False).ids
    return ids


CHATML = """\
{%- for message in messages -%}
{%- if loop.first and message.role != 'system' -%}{{ '<|im_start|>system\\nBe kind<|im_end|>\\n' }}{%- endif -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""

TRIMMING = """\
{{- bos_token -}}
{%- for message in messages -%}
{{- '<|head|>' + message.role + '<|/head|>\\n\\n' -}}
{%- if message.role == 'tool' -%}{{- message.content | tojson -}}
{%- elif message.tool_calls is defined -%}
{%- set call = message.tool_calls[0].function -%}
{{- '{"name": "' + call.name + '", "parameters": ' -}}{{- call.arguments | tojson -}}{{- '}' -}}
{%- else -%}{{- message.content | trim -}}{%- endif -%}
{{- '<|eot|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|head|>assistant<|/head|>\\n\\n' -}}{%- endif -%}
"""

ALTERNATING = """\
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}{%- set opening = messages[0].content -%}{%- set turns = messages[1:] -%}
{%- else -%}{%- set turns = messages -%}{%- endif -%}
{%- if not turns -%}{{ raise_exception('a user message must come first') }}{%- endif -%}
{%- for message in turns -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate user/assistant') }}{%- endif -%}
{%- if message.role == 'user' -%}
{{- '[INST] ' + (opening + '\\n\\n' if loop.last and opening is defined else '') + message.content + ' [/INST]' -}}
{%- else -%}{{- ' ' + message.content + eos_token -}}{%- endif -%}
{%- endfor -%}
"""

THINKING = """\
{%- if tools -%}{{- '<|im_start|>system\\nTools:\\n' -}}{%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
{%- set ns = namespace(last=0) -%}
{%- for message in messages -%}{%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if loop.index0 > ns.last -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{{- message.content.strip('\\n') -}}
{%- for call in message.tool_calls or [] -%}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson -}}{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif message.role == 'tool' -%}{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' -}}
{%- else -%}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
