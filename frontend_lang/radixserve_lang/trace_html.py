"""A trace as a web page: nested lists with bars of tokens and of time. No scripts; everything of the program is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixserve_lang.trace import TraceBranch, TraceStep
    from radixserve_tokenizer.protocol import Usage

#: Longer text is shown after a click.
_SHORT_CHARS = 160

_STYLE = """
.rs-trace { color-scheme: light dark; --fg: #1d2430; --dim: #667; --line: #d5dae2; --bg: #fff; --card: #f5f7fa;
  --cached: #8fb8a8; --new: #3f7fbf; --out: #c98a2b; --wait: #c3c9d4; --bad: #b3312c;
  color: var(--fg); background: var(--bg); font: 13px/1.45 ui-sans-serif, system-ui, sans-serif; padding: 12px; }
@media (prefers-color-scheme: dark) { .rs-trace { --fg: #dfe5ee; --dim: #98a2b3; --line: #39414f; --bg: #171b22; --card: #20262f;
  --cached: #4f7a69; --new: #5c9bd6; --out: #d7a04a; --wait: #4a5362; --bad: #f0837d; } }
.rs-trace ol { list-style: none; margin: 0 0 0 10px; padding: 0 0 0 10px; border-left: 2px solid var(--line); }
.rs-trace li { margin: 6px 0; padding: 6px 8px; background: var(--card); border-radius: 6px; }
.rs-trace li.rs-failed { outline: 1px solid var(--bad); }
.rs-trace .rs-kind { font-weight: 600; } .rs-trace .rs-dim { color: var(--dim); } .rs-trace .rs-bad { color: var(--bad); }
.rs-trace pre { margin: 4px 0 0; white-space: pre-wrap; overflow-wrap: anywhere; font: 12px/1.4 ui-monospace, monospace; }
.rs-trace .rs-bar { display: flex; height: 7px; margin: 5px 0 2px; border-radius: 4px; overflow: hidden; background: var(--line); }
.rs-trace .rs-bar i { display: block; height: 100%; } .rs-trace .rs-cached { background: var(--cached); }
.rs-trace .rs-new { background: var(--new); } .rs-trace .rs-out { background: var(--out); } .rs-trace .rs-wait { background: var(--wait); }
.rs-trace summary { cursor: pointer; } .rs-trace table { border-collapse: collapse; margin-top: 4px; }
.rs-trace td { padding: 0 12px 0 0; vertical-align: top; } .rs-trace .rs-key i { display: inline-block; width: 10px; height: 10px;
  border-radius: 3px; margin: 0 4px 0 12px; }
"""


def page(root: TraceBranch) -> str:
    """A whole document."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>RadixServe trace</title><style>body {{ margin: 0; }}</style></head><body>{fragment(root)}</body></html>\n"
    )


def fragment(root: TraceBranch) -> str:
    """What a notebook shows."""
    total_s = max((step.ended_s or step.began_s for step in _steps(root)), default=0.0)
    return f'<div class="rs-trace"><style>{_STYLE}</style>{_head(root, total_s)}{_branch(root, total_s)}</div>'


def _steps(branch: TraceBranch) -> Iterator[TraceStep]:
    for step in branch.steps:
        yield step
        for child in step.branches:
            yield from _steps(child)


def _head(root: TraceBranch, total_s: float) -> str:
    usages = [step.usage for step in _steps(root) if step.usage is not None]
    prompt, cached = sum(usage.prompt_tokens for usage in usages), sum(usage.cached_tokens for usage in usages)
    out = sum(usage.output_tokens for usage in usages)
    key = "".join(
        f'<i class="rs-{name}"></i>{label}'
        for name, label in (("cached", "cached"), ("new", "computed, prefill"), ("out", "generated, decode"), ("wait", "waited"))
    )
    return (
        f'<div><span class="rs-kind">program</span> <span class="rs-dim">{len(usages)} ops, {prompt} prompt tokens '
        f"({cached} cached), {out} generated, {total_s:.3f} s</span></div>"
        f'<div class="rs-dim rs-key">{key}</div>'
    )


def _branch(branch: TraceBranch, total_s: float) -> str:
    return "<ol>" + "".join(_step(step, total_s) for step in branch.steps) + "</ol>"


def _step(step: TraceStep, total_s: float) -> str:
    bad = step.status in ("failed", "lost")
    parts = ['<li class="rs-failed">' if bad else "<li>", _title(step)]
    if step.usage is not None:
        parts.append(_tokens(step.usage))
        parts.append(_times(step, step.usage, total_s))
    if step.reasoning:
        parts.append(_text(step.reasoning, "reasoning"))
    parts += [_text(f"{name}({arguments})", "call") for name, arguments in step.calls]
    if step.text and not step.calls:
        parts.append(_text(step.text))
    if step.scores:
        rows = "".join(f"<tr><td>{escape(option)}</td><td>{score:.3f}</td></tr>" for option, score in step.scores)
        parts.append(f"<table>{rows}</table>")
    if step.error:
        parts.append(f'<pre class="rs-bad">{escape(step.error)}</pre>')
    for child in step.branches:
        name = ".".join(map(str, child.path))
        parts.append(f"<details open><summary>branch {name}</summary>{_branch(child, total_s)}</details>")
    parts.append("</li>")
    return "".join(parts)


def _title(step: TraceStep) -> str:
    notes: list[str] = []
    if step.branches:
        notes.append(f"into {len(step.branches)}")
    if step.usage is not None:
        usage = step.usage
        notes.append(f"{usage.prompt_tokens} prompt ({usage.cached_tokens} cached, {step.new_tokens} appended since)")
        if usage.output_tokens:
            notes.append(f"{usage.output_tokens} generated")
        if usage.num_preemptions:
            notes.append(f"preempted {usage.num_preemptions} times")
    if step.finish_reason not in ("", "stop"):
        notes.append(step.finish_reason)
    if step.num_refused:
        notes.append(f"{step.num_refused} refused")
    status = "" if step.status == "done" else f' <span class="rs-bad">{escape(step.status)}</span>'
    return (
        f'<span class="rs-kind">{escape(step.kind)}</span>{status} <span class="rs-dim">{escape(", ".join(notes))} '
        f"&middot; {escape(step.where)}</span>"
    )


def _tokens(usage: Usage) -> str:
    computed = usage.prompt_tokens - usage.cached_tokens
    title = f"{usage.cached_tokens} cached, {computed} computed, {usage.output_tokens} generated"
    return _bar(title, (("cached", usage.cached_tokens), ("new", computed), ("out", usage.output_tokens)))


def _times(step: TraceStep, usage: Usage, total_s: float) -> str:
    """Where in the program's time it stood."""
    if total_s <= 0 or step.ended_s is None:
        return ""
    ran_s = usage.prefill_s + usage.decode_s
    waited_s = max(0.0, step.ended_s - step.began_s - ran_s)
    title = (
        f"from {step.began_s:.3f} s to {step.ended_s:.3f} s: waited {waited_s:.3f} s (of them queued {usage.queued_s:.3f} s), "
        f"prefill {usage.prefill_s:.3f} s, decode {usage.decode_s:.3f} s"
    )
    spent = (("", step.began_s), ("wait", waited_s), ("new", usage.prefill_s), ("out", usage.decode_s))
    rest = max(0.0, total_s - sum(amount for _, amount in spent))
    return _bar(title, (*spent, ("", rest))) + f'<span class="rs-dim">{escape(title)}</span>'


def _bar(title: str, amounts: tuple[tuple[str, float], ...]) -> str:
    total = sum(amount for _, amount in amounts) or 1.0
    pieces = "".join(
        f'<i class="rs-{name or "none"}" style="width:{100 * amount / total:.2f}%"></i>' for name, amount in amounts if amount > 0
    )
    return f'<div class="rs-bar" title="{escape(title)}">{pieces}</div>'


def _text(text: str, label: str = "") -> str:
    name = f'<span class="rs-dim">{label}</span> ' if label else ""
    if len(text) <= _SHORT_CHARS:
        return f"<pre>{name}{escape(text)}</pre>"
    head = escape(text[:_SHORT_CHARS])
    return f"<details><summary><pre>{name}{head}...</pre></summary><pre>{escape(text)}</pre></details>"
