"""What to do about an op that failed, by the server's code. Where its message says so already there is nothing here."""

from __future__ import annotations

_ADVICE = {
    "context_length_exceeded": "Append less before it, fork earlier, or ask for fewer max_tokens.",
    "prompt_too_long": "Append less before it, or give the engine more KV (kv_tokens).",
    "empty_prompt": "Append something first, as in s += rs.user(...).",
    "no_chat_template": "Append plain text instead of messages, or serve a chat model.",
    "invalid_grammar": "Change the schema, regex or grammar at that line.",
    "budget_exhausted": "Give the program more with budget=rs.Budget(...), or stop earlier.",
    "cancelled": "Read it, and what refers to it, before its branch is cancelled or its fork block is left.",
    "skipped": "It did not run: what failed before it is what to look at.",
    "too_many_branches": "Leave fork blocks (with s.fork(n) as branches: ...) as soon as their values have been read.",
    "internal": "This is the server's fault: its log has more.",
}


def advice(code: str, status: int, *, retryable: bool) -> str:
    """One sentence, or nothing."""
    if code in _ADVICE:
        return _ADVICE[code]
    if retryable:
        return "It may work later: run the program again."
    if code != "invalid_value" and 400 <= status < 500 and status not in (408, 409, 429, 499):
        return "Change what is asked for at that line."
    return ""


def refusal_advice(status: int, retry_after_s: float) -> str:
    """The same for a program that was not admitted."""
    if status in (401, 403):
        return "Pass the key of a tenant: rs.connect(..., api_key=...), or RADIXSERVE_API_KEY."
    if status in (429, 503) and not retry_after_s:
        return "Run it again later, or fewer programs at a time."
    return ""
