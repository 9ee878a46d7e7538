"""A page about the interface, made from its OpenAPI document: nothing is loaded from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

STYLE = """
:root { --paper: #fff; --pane: #f6f7f9; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --accent: #0b5fa5; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171b; --pane: #1d2127; --ink: #e6e9ed; --soft: #9aa4af; --line: #363c45; --accent: #6cb2f0; }
}
body { max-width: 900px; margin: 0 auto; padding: 1rem; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
body { overflow-wrap: anywhere; }
article { border-top: 1px solid var(--line); padding: .4rem 0 1rem; }
h2 { font: 600 1.05rem ui-monospace, monospace; }
table { border-collapse: collapse; width: 100%; }
td { border-top: 1px solid var(--line); padding: .2rem .8rem .2rem 0; vertical-align: top; }
td:nth-child(2) { color: var(--soft); }
code { background: var(--pane); padding: .1rem .3rem; }
a { color: var(--accent); }
"""


def reference(document: dict[str, Any]) -> str:
    routes = [
        route(method, path, operation, document["components"]["schemas"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    head = (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">\
<meta name="color-scheme" content="light dark"><title>dragoman: the interface</title><style>{STYLE}</style></head>'
    )
    intro = '<p>Made from <a href="/openapi.json">/openapi.json</a>, which other programs read. <a href="/">The page for people</a>.</p>'
    return f"{head}<body><h1>The interface</h1>{intro}{''.join(routes)}</body></html>\n"


def route(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    words = f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(operation.get('description', ''))}</p>"
    kinds = operation.get("requestBody", {}).get("content", {})
    schema: dict[str, Any] = next(iter(kinds.values()))["schema"] if kinds else {}
    fields = schemas[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema
    needed = fields.get("required", [])
    asked = [
        (name, f"{type_of(field)}{', needed' if name in needed else ''}", field.get("description", ""))
        for name, field in fields.get("properties", {}).items()
    ]
    answers = [(code, "", answer["description"]) for code, answer in operation["responses"].items()]
    parts = [(f"Asked, as {' or '.join(kinds)}", asked), ("Answered", answers)]
    return f"<article>{words}{''.join(table(title, rows) for title, rows in parts if rows)}</article>"


def type_of(field: dict[str, Any]) -> str:
    kinds = [type_of(each) for each in field.get("anyOf", []) if each.get("type") != "null"]
    return " or ".join(kinds) or ("array of " + type_of(field["items"]) if "items" in field else field.get("type", ""))


def table(title: str, rows: list[tuple[str, str, str]]) -> str:
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(kind)}</td><td>{escape(words)}</td></tr>"
        for name, kind, words in rows
    )
    return f"<p>{escape(title)}</p><table>{cells}</table>"
