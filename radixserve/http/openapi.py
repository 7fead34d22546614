"""The OpenAPI document. Bodies are parsed by hand from raw bytes, so their schemas are put in here, from the models that check them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi

from radixserve import __version__
from radixserve.http.extension import MAX_ID_CHARS, MAX_LEASE_S, header_of
from radixserve.http.responses import components

if TYPE_CHECKING:
    from fastapi import FastAPI

_ERRORS = {
    "400": "The request can't be served; `param` names what is wrong.",
    "401": "The API key is missing or unknown.",
    "404": "No model of that name.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "431": "The headers or the address are too large.",
    "429": "Over the tenant's limit; Retry-After says when to try again.",
    "500": "The server failed.",
    "503": "The engine is loading, full or down; Retry-After says when to try again.",
}


KEY: list[dict[str, list[str]]] = [{}, {"bearer": []}, {"x-api-key": []}]
"""For operations that need a key where there are tenants."""


def ref(name: str) -> dict[str, str]:
    """A reference to one of the document's schemas."""
    return {"$ref": f"#/components/schemas/{name}"}


def describes(request: str, answer: str, chunk: str = "", *, error: str = "ErrorAnswer") -> dict[str, Any]:
    """A route's body and answers, by the names of their models; `chunk` "" where nothing is streamed."""
    errors = {
        status: {"description": text, "content": {"application/json": {"schema": ref(error)}}} for status, text in _ERRORS.items()
    }
    answers = {"application/json": {"schema": ref(answer)}}
    if chunk:
        answers["text/event-stream"] = {"schema": ref(chunk)}
    told = "The answer, or with `stream` its chunks as events." if chunk else "The answer."
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": ref(request)}}},
        "responses": {"200": {"description": told, "content": answers}, **errors},
        "security": KEY,
        **({"parameters": _program_headers()} if chunk else {}),
    }


def _program_headers() -> list[dict[str, Any]]:
    texts = {
        "program_id": (
            "The agent program that the request is of.",
            {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS},
        ),
        "parent": ("The program that started it.", {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS}),
        "lease_s": (
            "Seconds for which its KV is kept after the answer.",
            {"type": "number", "minimum": 0, "maximum": MAX_LEASE_S},
        ),
    }
    return [
        {"name": header_of(field), "in": "header", "required": False, "description": text, "schema": schema}
        for field, (text, schema) in texts.items()
    ]


def _drop_validation_answers(document: dict[str, Any]) -> None:
    """FastAPI promises a 422 wherever a path has a parameter; this server never sends one."""
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)


def _add_common_errors(document: dict[str, Any]) -> None:
    """What can happen to any request."""
    for operations in document["paths"].values():
        for operation in operations.values():
            for status in ("431", "500"):
                content = {"application/json": {"schema": ref("ErrorAnswer")}}
                operation["responses"].setdefault(status, {"description": _ERRORS[status], "content": content})


def install_openapi(app: FastAPI) -> None:
    """Let the app's document name the hand-parsed bodies."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            from radixserve.http.messages_api.request import MessagesRequest
            from radixserve.http.responses_api.request import ResponsesRequest
            from radixserve.http.schemas import ChatRequest, CompletionRequest
            from radixserve.http.tokenize_route import DetokenizeRequest, TokenizeRequest

            document = get_openapi(title=app.title, version=__version__, description=app.description, routes=app.routes)
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            _drop_validation_answers(document)
            _add_common_errors(document)
            schemas.update(components())
            bodies = (ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest, TokenizeRequest, DetokenizeRequest)
            for model in bodies:
                schemas[model.__name__] = model.model_json_schema(ref_template="#/components/schemas/{model}")
            document["components"]["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
