"""The OpenAPI document. Bodies are parsed by hand from raw bytes, so their schemas are put in here, from the models that check them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi

from radixserve import __version__
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
    "429": "Over the tenant's limit; Retry-After says when to try again.",
    "500": "The server failed.",
    "503": "The engine is loading, full or down; Retry-After says when to try again.",
}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def describes(request: str, answer: str, chunk: str = "", *, error: str = "ErrorAnswer") -> dict[str, Any]:
    """A route's body and answers, by the names of their models; `chunk` "" where nothing is streamed."""
    errors = {
        status: {"description": text, "content": {"application/json": {"schema": _ref(error)}}}
        for status, text in _ERRORS.items()
    }
    answers = {"application/json": {"schema": _ref(answer)}}
    if chunk:
        answers["text/event-stream"] = {"schema": _ref(chunk)}
    told = "The answer, or with `stream` its chunks as events." if chunk else "The answer."
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(request)}}},
        "responses": {"200": {"description": told, "content": answers}, **errors},
        "security": [{}, {"bearer": []}],
    }


def _drop_validation_answers(document: dict[str, Any]) -> None:
    """FastAPI promises a 422 wherever a path has a parameter; this server never sends one."""
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)


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
            schemas.update(components())
            bodies = (ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest, TokenizeRequest, DetokenizeRequest)
            for model in bodies:
                schemas[model.__name__] = model.model_json_schema(ref_template="#/components/schemas/{model}")
            document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
