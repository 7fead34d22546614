"""JSON Schemas that are made to be too much, by what is too much in them."""

from __future__ import annotations

from typing import Any

_CHAIN = {
    f"n{i}": {
        "type": "array",
        "prefixItems": [
            {"allOf": [{"$ref": f"#/$defs/n{i + 1}"}]},
            {"allOf": [{"$ref": f"#/$defs/n{i + 1}"}, {"$ref": "#/$defs/n0"}]},
        ],
    }
    for i in range(14)
}
_OBJECTS = [{"type": "object", "properties": {f"p{i}": {"type": "integer", "minimum": i}}} for i in range(64)]

#: Small schemas that mean so much that working it out is given up.
TOO_COMPLEX: dict[str, Any] = {
    "allOf of anyOf": {"allOf": [{"anyOf": [{"required": [f"p{i}"]}, {"required": [f"q{i}"]}]} for i in range(30)]},
    "patterns that meet": {"allOf": [{"anyOf": [{"pattern": f"a{{{i}}}b"}, {"pattern": f"c{{{i}}}d"}]} for i in range(1, 10)]},
    "oneOf of overlapping objects": {"oneOf": _OBJECTS},
    "references that multiply": {
        "$defs": {**_CHAIN, "n14": {"type": "array", "items": {"$ref": "#/$defs/n0"}}},
        "$ref": "#/$defs/n0",
    },
    "a pattern of many states": {"type": "string", "pattern": "(.*a){30}", "maxLength": 900},
    "a long counted pattern": {"type": "string", "pattern": "^(ab|c){1,900}$", "maxLength": 500},
    "numbers that are forbidden": {"type": "number", "not": {"enum": [i * 1.37 for i in range(300)]}},
    "divisors": {"type": "integer", "allOf": [{"not": {"multipleOf": k}} for k in (7, 11, 13, 17)]},
    "counts that meet": {
        "type": "array",
        "allOf": [{"contains": {"const": i}, "minContains": 3, "maxContains": 6} for i in range(5)],
    },
    "names that meet": {
        "type": "object",
        "patternProperties": {f"{c}.{{3}}{c}": {"minimum": i} for i, c in enumerate("abcde")},
    },
    "3,000 properties": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3000)}},
    "conditions": {"allOf": [{"if": {"required": [f"p{i}"]}, "then": {"required": [f"q{i}"]}} for i in range(12)]},
}

#: All of them, and some that are refused for another reason, or are much work that ends.
HOSTILE_SCHEMAS: dict[str, Any] = {
    **TOO_COMPLEX,
    "a step and a range": {"type": "number", "multipleOf": 0.37, "minimum": -1234.567, "maximum": 98765.43},
    "counted items": {"type": "array", "minItems": 900, "contains": {"const": 1}, "minContains": 3, "maxContains": 30},
    "5 MB of schema": {"description": "x" * (5 << 20)},
    "a reference to itself": {"$ref": "#"},
}
