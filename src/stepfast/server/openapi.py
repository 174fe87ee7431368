"""The OpenAPI document: gathered from what the route modules say of their routes, with what all routes share.

An author writes the summary, the request body and the good answer (and whatever else is special); path
parameters, security and the errors that the guard gives are added here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from types import ModuleType
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stepfast import __version__

Docs = Mapping[tuple[str, str], dict[str, Any]]

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_OPEN = frozenset({"/health", "/ready", "/metrics", "/openapi.json"})
# OpenAPI 3.1 has no schema for the parts of a stream, and one for the whole would say nothing.
_STREAMED = frozenset({"text/event-stream", "application/x-ndjson"})
_ERRORS = {
    "400": "The request is malformed",
    "401": "No key, or none that is good",
    "403": "The key does not allow this",
    "404": "There is no such thing, or not for this key",
    "405": "Not with this method",
    "408": "The request did not arrive in time",
    "409": "It is in a state that does not allow this, or holds something else",
    "413": "The body is too large",
    "415": "The body is in a form that is not read here",
    "422": "A value is wrong; the message names it",
    "429": "Too many requests or streams; Retry-After says when to ask again",
    "431": "The headers are too large",
    "503": "The store cannot be reached now",
    "507": "The store is full",
}
ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "details": {"type": "object"},
            },
            "required": ["code", "message"],
        },
        "detail": {"type": "string"},
    },
    "required": ["error", "detail"],
}


def path_of(route_path: str) -> str:
    """A route's path as OpenAPI writes it."""
    return _PARAMETER.sub(r"{\1}", route_path)


def build_document(modules: Iterable[ModuleType]) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for module in modules:
        docs: Docs = module.DOCS
        tag = module.__name__.rpartition(".")[2].removesuffix("_api")
        for (method, route_path), said in docs.items():
            operation = _complete(method, route_path, said, tag)
            paths.setdefault(path_of(route_path), {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stepfast",
            "version": __version__,
            "description": "Durable intents, journals and deliveries for AI agents. The AXME wire, and more.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {"Error": ERROR_SCHEMA},
            "responses": {status: _error(status) for status in _ERRORS},
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _error(status: str) -> dict[str, Any]:
    told: dict[str, Any] = {
        "description": _ERRORS[status],
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    if status == "429":
        told["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}
    return told


def _complete(method: str, route_path: str, said: dict[str, Any], tag: str) -> dict[str, Any]:
    """An operation with all that follows from its place."""
    operation = deepcopy(said)
    names = _PARAMETER.findall(route_path)
    operation.setdefault("operationId", _operation_id(method, route_path))
    operation.setdefault("tags", [tag])
    parameters: list[dict[str, Any]] = operation.setdefault("parameters", [])
    given = {each["name"] for each in parameters if each.get("in") == "path"}
    parameters += [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in names
        if name not in given
    ]
    if not parameters:
        del operation["parameters"]
    statuses = _statuses(method, route_path, operation, bool(names))
    responses: dict[str, Any] = operation.setdefault("responses", {})
    for status in statuses:
        responses.setdefault(status, {"$ref": f"#/components/responses/{status}"})
    for answer in responses.values():
        for kind, content in answer.get("content", {}).items():
            if kind in _STREAMED:
                content.pop("schema", None)
    operation["responses"] = dict(sorted(responses.items()))
    if route_path not in _OPEN:
        operation["security"] = [{"key": []}, {"bearer": []}]
    return operation


def _statuses(method: str, route_path: str, operation: dict[str, Any], named: bool) -> set[str]:
    """The errors that any operation of this kind can end with."""
    statuses = {"400", "408", "415", "431", "503"}
    if route_path in ("/health", "/openapi.json"):
        return {"400", "408", "415", "431"}
    if route_path not in _OPEN:
        statuses |= {"401", "403", "429"}
    elif route_path == "/metrics":
        statuses.add("403")
    if named:
        statuses |= {"404", "422"}
    if any(each.get("in") != "path" for each in operation.get("parameters", ())):
        statuses.add("422")
    if method != "GET":
        statuses |= {"404", "409", "413", "422", "507"}
    return statuses


def _operation_id(method: str, route_path: str) -> str:
    words = re.findall(r"[A-Za-z0-9]+", _PARAMETER.sub(r"\1", route_path))
    return "_".join([method.lower(), *(word.lower() for word in words)])


async def show_document(request: Request) -> Response:
    return JSONResponse(request.app.document)


routes: list[Route] = [Route("/openapi.json", show_document, methods=["GET"])]
DOCS: dict[tuple[str, str], dict[str, Any]] = {
    ("GET", "/openapi.json"): {
        "summary": "This document",
        "responses": {
            "200": {"description": "OpenAPI 3.1", "content": {"application/json": {"schema": {"type": "object"}}}}
        },
    }
}
