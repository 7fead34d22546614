"""Which JSON Schemas are enforced: the check and the rewriting before a schema is compiled.

The compiler ignores much of JSON Schema in silence. So nothing passes here that isn't known to be enforced: a keyword,
or a pair of them, is either listed below, or rewritten into what is, or refused with its place and name. Where schema
and compiler differ the result is the stricter one: undeclared properties and further items are not written.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from radixserve_tokenizer.grammar.errors import ConstraintError
from radixserve_tokenizer.grammar.formats import COMPILER_FORMATS, FORMAT_PATTERNS
from radixserve_tokenizer.grammar.overlap import disjoint
from radixserve_tokenizer.grammar.patterns import json_string_rule
from radixserve_tokenizer.grammar.references import Definitions
from radixserve_tokenizer.grammar.regex import RegexError
from radixserve_tokenizer.grammar.values import bounds, check_numbers, counts, has_type, strings, type_names

Schema: TypeAlias = dict[str, Any]

MAX_SCHEMA_BYTES = 256 << 10
MAX_DEPTH = 32
MAX_NODES = 4000

#: Say nothing about the value, or nothing that JSON text could break. Extensions (x-...) are the same.
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"}
    | {"$schema", "$comment", "$id", "contentMediaType", "contentEncoding", "discriminator"}
)
_DEFINITIONS = ("$defs", "definitions")
_COMBINERS = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")
KEYWORDS_BY_TYPE: dict[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
_KNOWN = frozenset({"type", *_COMBINERS, *_DEFINITIONS}).union(*KEYWORDS_BY_TYPE.values())
#: Values with which a keyword that can't be enforced asks for nothing.
_VACUOUS: dict[str, Any] = {"uniqueItems": False, "nullable": False, "unevaluatedProperties": False, "strict": True}


#: Stands in a rewritten schema for the rule with this number: an expression that the compiler copies as it is.
PATTERN_MARK = "^[q]pattern{}$"


def prepare_schema(source: str) -> str:
    """JSON text {"schema": an equivalent (or stricter) schema that the compiler enforces, "rules": [...]}.

    A `pattern` in the schema is `PATTERN_MARK` with the number of the EBNF rule that is meant. Raises `ConstraintError`.
    """
    schema = _parse(source)
    if schema is False:
        raise ConstraintError("the schema 'false' allows no value", "")
    if schema is not True and not isinstance(schema, dict):
        raise ConstraintError("a schema must be an object", "")
    try:
        rewriter = _Rewriter(schema)
        prepared = {"schema": rewriter.root(), "rules": list(rewriter.rules)}
        return json.dumps(prepared, ensure_ascii=False, separators=(",", ":"))
    except RecursionError as error:
        raise ConstraintError("it is nested too deep", "") from error


def _parse(source: str) -> Any:
    if len(source) > MAX_SCHEMA_BYTES or len(source.encode(errors="surrogatepass")) > MAX_SCHEMA_BYTES:
        raise ConstraintError(f"it is larger than {MAX_SCHEMA_BYTES} bytes", "")
    try:
        schema = json.loads(source, parse_constant=_no_constant, object_pairs_hook=_object)
        json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise ConstraintError("it has a lone surrogate, which is no character", "") from error
    except RecursionError as error:
        raise ConstraintError(f"it is nested more than {MAX_DEPTH} deep", "") from error
    except ConstraintError:
        raise
    except ValueError as error:
        raise ConstraintError(f"it is not valid JSON: {error}", "") from error
    return schema


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _object(pairs: list[tuple[str, Any]]) -> Schema:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has the same key twice")
    return found


class _Rewriter:
    """One schema. Pointers are of the user's own text."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._num_nodes = 0
        self.rules: dict[str, int] = {}
        """Bodies of the rules for patterns, numbered."""
        self._definitions = Definitions(schema if isinstance(schema, dict) else {})

    def root(self) -> Any:
        """The whole schema, rewritten."""
        if self._schema is True:
            return {}
        rewritten = self._node(self._schema, "", 0)
        self._definitions.check_cycles()
        for keyword in _DEFINITIONS:
            named = self._schema.get(keyword)
            if named is None:
                continue
            if not isinstance(named, dict):
                raise ConstraintError(f"'{keyword}' must be an object", f"/{keyword}")
            used = [name for name in named if self._definitions.is_used(keyword, name)]
            if used:
                rewritten[keyword] = {name: self._node(named[name], _join(f"/{keyword}", name), 1) for name in used}
        return rewritten

    def _node(self, schema: Any, pointer: str, depth: int) -> Schema:
        self._num_nodes += 1
        if depth > MAX_DEPTH:
            raise ConstraintError(f"the schema is nested more than {MAX_DEPTH} deep", pointer)
        if self._num_nodes > MAX_NODES:
            raise ConstraintError(f"the schema has more than {MAX_NODES} parts", pointer)
        if schema is True:
            return {}
        if schema is False:
            raise ConstraintError("the schema 'false' allows no value", pointer)
        if not isinstance(schema, dict):
            raise ConstraintError("a schema must be an object, true or false", pointer)
        keywords = self._keywords(schema, pointer)
        combiners = [name for name in _COMBINERS if name in keywords]
        if combiners:
            return self._combined(combiners[0], keywords, pointer, depth)
        types = self._types(keywords, pointer)
        if not types:
            return {}
        options = [self._typed(name, keywords, pointer, depth) for name in types]
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _keywords(self, schema: Schema, pointer: str) -> Schema:
        """What is left of a node without annotations; refuses what isn't known."""
        keywords: Schema = {}
        for name, value in schema.items():
            if name in ANNOTATIONS or name.startswith("x-") or (name in _VACUOUS and value == _VACUOUS[name]):
                if name == "$id" and pointer:
                    raise _unenforceable("$id", "inside a schema", pointer)
                continue
            if name not in _KNOWN:
                raise _unenforceable(name, "", pointer)
            if name in _DEFINITIONS:
                if pointer:
                    raise _unenforceable(name, "below the root; move it there", pointer)
                continue
            keywords[name] = value
        return keywords

    def _combined(self, name: str, keywords: Schema, pointer: str, depth: int) -> Schema:
        beside = [other for other in keywords if other != name and not (other == "type" and name in ("enum", "const"))]
        if beside:
            raise _unenforceable(beside[0], f"beside '{name}'", pointer)
        value = keywords[name]
        match name:
            case "$ref":
                return {"$ref": self._definitions.resolve(value, pointer)}
            case "enum" | "const":
                return self._values(name, [value] if name == "const" else value, keywords, pointer)
            case _:
                return self._options(name, value, pointer, depth)

    def _options(self, name: str, value: Any, pointer: str, depth: int) -> Schema:
        if not isinstance(value, list) or not value:
            raise ConstraintError(f"'{name}' must be a list that is not empty", pointer)
        members = [self._node(member, _join(f"{pointer}/{name}", index), depth + 1) for index, member in enumerate(value)]
        if len(members) == 1:
            return members[0]
        if name == "allOf":
            raise _unenforceable("allOf", "with several members; merge them into one schema", pointer)
        if name == "oneOf" and not disjoint(members, self._definitions, value):
            raise _unenforceable(
                "oneOf", "unless its members exclude each other by type or by a required const property; use anyOf", pointer
            )
        return {"anyOf": members}

    def _values(self, name: str, values: Any, keywords: Schema, pointer: str) -> Schema:
        if not isinstance(values, list) or not values:
            raise ConstraintError("'enum' must be a list that is not empty", pointer)
        allowed = type_names(keywords["type"], pointer) if "type" in keywords else None
        kept = [value for value in values if allowed is None or any(has_type(value, wanted) for wanted in allowed)]
        if not kept:
            raise ConstraintError(f"no value of '{name}' has the 'type'", pointer)
        for value in kept:
            check_numbers(value, f"{pointer}/{name}")
        return {"enum": kept}

    def _types(self, keywords: Schema, pointer: str) -> list[str]:
        """The types of a node; without `type` the one that its keywords speak of; none for a node without keywords."""
        if "type" in keywords:
            return type_names(keywords["type"], pointer)
        implied = [name for name, own in KEYWORDS_BY_TYPE.items() if name != "integer" and own & keywords.keys()]
        if len(implied) > 1:
            raise ConstraintError(f"it speaks of {' and '.join(implied)} at once: say which with 'type'", pointer)
        return implied

    def _typed(self, name: str, keywords: Schema, pointer: str, depth: int) -> Schema:
        own = {key: keywords[key] for key in KEYWORDS_BY_TYPE[name] if key in keywords}
        match name:
            case "object":
                return {"type": name, **self._object(own, pointer, depth)}
            case "array":
                return {"type": name, **self._array(own, pointer, depth)}
            case "string":
                return {"type": name, **self._string(own, pointer)}
            case "number" | "integer":
                return {"type": name, **bounds(name, own, pointer)}
            case _:
                return {"type": name}

    def _object(self, own: Schema, pointer: str, depth: int) -> Schema:
        declared = own.get("properties", {})
        if not isinstance(declared, dict):
            raise ConstraintError("'properties' must be an object", pointer)
        rewritten: Schema = {}
        properties = {key: self._node(value, _join(f"{pointer}/properties", key), depth + 1) for key, value in declared.items()}
        additional = own.get("additionalProperties", "properties" not in own and "required" not in own)
        if isinstance(additional, dict):
            additional = self._node(additional, f"{pointer}/additionalProperties", depth + 1)
        elif not isinstance(additional, bool):
            raise ConstraintError("'additionalProperties' must be a schema", pointer)
        required = strings(own.get("required", []), "required", pointer)
        for key in required:
            if key not in properties:
                if own.get("additionalProperties") is False:
                    raise ConstraintError(f"{key!r} is required, but no such property is allowed", pointer)
                properties[key] = additional if isinstance(additional, dict) else {}
        if properties or additional is False:
            rewritten["properties"] = properties
        if required:
            rewritten["required"] = required
        rewritten["additionalProperties"] = additional
        low, high = counts(own, "minProperties", "maxProperties", pointer)
        if low > max(1, len(required)) and additional is not False:
            # A repeated name would count twice.
            raise _unenforceable("minProperties", "above 1 where further properties are allowed", pointer)
        if 0 <= high < len(required) or (additional is False and low > len(properties)):
            raise ConstraintError("no object has so many required properties within 'minProperties' and 'maxProperties'", pointer)
        return rewritten | {key: own[key] for key in ("minProperties", "maxProperties") if key in own}

    def _array(self, own: Schema, pointer: str, depth: int) -> Schema:
        rewritten: Schema = {}
        prefix = own.get("prefixItems", [])
        if not isinstance(prefix, list):
            raise ConstraintError("'prefixItems' must be a list", pointer)
        low, high = counts(own, "minItems", "maxItems", pointer)
        if high >= 0:
            prefix = prefix[:high]
        if prefix:
            rewritten["prefixItems"] = [
                self._node(item, _join(f"{pointer}/prefixItems", index), depth + 1) for index, item in enumerate(prefix)
            ]
        items = own.get("items", not prefix or low > len(prefix))
        if isinstance(items, list):
            raise _unenforceable("items", "as a list; use prefixItems", pointer)
        if items is False and low > len(prefix):
            raise ConstraintError(f"'minItems' is {low}, but no more than {len(prefix)} items are allowed", pointer)
        rewritten["items"] = items if items is False else self._node(items, f"{pointer}/items", depth + 1)
        return rewritten | {key: own[key] for key in ("minItems", "maxItems") if key in own}

    def _string(self, own: Schema, pointer: str) -> Schema:
        counts(own, "minLength", "maxLength", pointer)
        if "pattern" in own or "format" in own:
            main = "pattern" if "pattern" in own else "format"
            beside = [key for key in ("format", "minLength", "maxLength") if key in own and key != main]
            if beside:
                raise _unenforceable(beside[0], f"beside '{main}'", pointer)
            value = own[main]
            if not isinstance(value, str):
                raise ConstraintError(f"'{main}' must be a string", pointer)
            if main == "format" and value not in FORMAT_PATTERNS:
                if value not in COMPILER_FORMATS:
                    known = ", ".join(sorted(COMPILER_FORMATS.union(FORMAT_PATTERNS)))
                    raise ConstraintError(f"keyword 'format' can't be enforced for {value!r}; known: {known}", pointer)
                return {"format": value}
            try:
                rule = json_string_rule(FORMAT_PATTERNS[value] if main == "format" else value)
            except RegexError as error:
                raise ConstraintError(f"keyword 'pattern' can't be enforced: {error}", pointer) from error
            return {"pattern": PATTERN_MARK.format(self.rules.setdefault(rule, len(self.rules)))}
        return {key: own[key] for key in ("minLength", "maxLength") if key in own}


def _unenforceable(name: str, how: str, pointer: str) -> ConstraintError:
    return ConstraintError(f"keyword '{name}' can't be enforced{' ' + how if how else ''}", pointer)


def _join(pointer: str, key: str | int) -> str:
    return f"{pointer}/{str(key).replace('~', '~0').replace('/', '~1')}"
