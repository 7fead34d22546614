"""Any JSON object, with bounded nesting and one fixed way of white space."""

from __future__ import annotations

MAX_DEPTH = 6
"""Objects and arrays inside each other, the outermost included. Each level is its own rules, whose token masks take room."""


def _grammar(max_depth: int) -> str:
    """EBNF text. White space is a space after ":" and ",", as Python's json writes it, and nowhere else."""
    rules = [
        "root ::= object1",
        r'string ::= "\"" ([^"\\\x00-\x1f] | "\\" ["\\/bfnrt])* "\""',
        'number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]+)?',
        'scalar ::= string | number | "true" | "false" | "null"',
    ]
    for level in range(1, max_depth + 1):
        value = "scalar" if level == max_depth else f"value{level + 1}"
        rules.append(f'object{level} ::= "{{" (string ": " {value} (", " string ": " {value})*)? "}}"')
        if level > 1:
            rules.append(f'array{level} ::= "[" ({value} (", " {value})*)? "]"')
            rules.append(f"value{level} ::= scalar | object{level} | array{level}")
    return "\n".join(rules) + "\n"


JSON_OBJECT_GRAMMAR = _grammar(MAX_DEPTH)
