"""defaults <- preset <- TOML file <- `section.key=value`, all problems reported at once, and back to TOML."""

from __future__ import annotations

import difflib
import inspect
import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from dragoman.config.schema import SECTIONS, Config, Section, broken_rules, missing_files
from dragoman.errors import ConfigError

Tables = dict[str, Any]

PRESETS = resources.files("dragoman.config") / "presets"


def presets() -> list[str]:
    return sorted(entry.name.removesuffix(".toml") for entry in PRESETS.iterdir() if entry.name.endswith(".toml"))


def load_config(
    source: str | Path | None = None, overrides: list[str] | None = None, *, for_prepare: bool = False
) -> Config:
    """The configuration of a TOML file, of a preset (by name) or of the defaults, with `section.key=value` on top.
    Only preparing needs the corpus files, so only `for_prepare` asks for them."""
    where = str(source or "configuration")
    given = read_source(source) if source else {}
    problems: list[str] = []
    base = given.pop("preset", None)
    tables = read_preset(base, problems) if base is not None else {}
    merge(tables, given)
    for override in overrides or []:
        apply_override(tables, override, problems)
    config, found = check(tables, for_prepare=for_prepare)
    problems += found
    if problems:
        raise ConfigError(problems, where)
    return config


def recorded_config(path: Path) -> Config:
    """What a run has written down, perhaps with an older version: what is no option today is passed over."""
    return check(read_source(path))[0]


def read_source(source: str | Path) -> Tables:
    if str(source) in presets():
        return {"preset": str(source)}
    path = Path(source)
    if path.is_dir():
        inside = path / "run.toml"
        named = f"name its run file: {inside}" if inside.is_file() else "name a run file (TOML)"
        raise ConfigError([f"is a folder; {named}"], str(source))
    if not path.is_file():
        raise ConfigError([f"no such file, nor a preset ({', '.join(presets())})"], str(source))
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"not a TOML file: {error}"], str(source)) from None


def read_preset(name: Any, problems: list[str]) -> Tables:
    if name not in presets():
        problems.append(f"preset = {name!r} is not known; choose one of {', '.join(presets())}")
        return {}
    return tomllib.loads((PRESETS / f"{name}.toml").read_text(encoding="utf-8"))


def merge(into: Tables, given: Tables) -> None:
    for section, keys in given.items():
        if isinstance(keys, dict) and isinstance(into.get(section), dict):
            into[section] = {**into[section], **keys}
        else:
            into[section] = keys


def apply_override(tables: Tables, override: str, problems: list[str]) -> None:
    name, equals, text = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot):
        problems.append(f"override {override!r} is not of the form section.key=value, for example train.max_steps=1000")
        return
    table = tables.setdefault(section, {})
    if key.startswith("corpora.") and isinstance(table, dict):
        corpus, _, key = key.removeprefix("corpora.").rpartition(".")
        given = table.get("corpora")
        entries = [entry for entry in given if isinstance(entry, dict)] if isinstance(given, list) else []
        table = next((entry for entry in entries if entry.get("name") == corpus), None)
        if table is None:
            problems.append(f"override {override!r}: no corpus of that name; write {section}.corpora.NAME.key=value")
    if isinstance(table, dict):
        table[key] = parse_value(text.strip())


def parse_value(text: str) -> Any:
    """A TOML value; what is not one (a path, a word) is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


# --- checking ----------------------------------------------------------------------------------------------


def check(tables: Tables, *, for_prepare: bool = False) -> tuple[Config, list[str]]:
    """The configuration and its problems. Rules between keys are checked even when some keys are wrong, but for those that are
    about wrong ones, or about what the names in data.corpora mean."""
    problems: list[str] = []
    wrong: set[str] = set()
    try:
        config = Config.model_validate(tables)
    except ValidationError as error:
        problems = [explain(detail) for detail in error.errors()]
        wrong = {".".join(str(part) for part in detail["loc"][:2]) for detail in error.errors()}
        config = Config.model_validate(without(tables, wrong))
    rules = [*broken_rules(config), *(missing_files(config.data) if for_prepare else ())]
    unknown = wrong | ({"data.stages", "data.train_source"} if "data.corpora" in wrong else set())
    problems += [rule for rule in rules if not any(key in rule for key in unknown)]
    return config, problems


def without(tables: Tables, wrong: set[str]) -> Tables:
    kept = {name: keys for name, keys in tables.items() if name not in wrong}
    return {
        name: {key: value for key, value in keys.items() if f"{name}.{key}" not in wrong}
        for name, keys in kept.items()
        if isinstance(keys, dict)
    }


def explain(detail: ErrorDetails) -> str:
    path = [str(part) for part in detail["loc"]]
    name, value = ".".join(path), detail["input"]
    if detail["type"] == "extra_forbidden":
        return f"{name} = {shorten(value)} is not an option{suggestion(path)}"
    if detail["type"] == "missing":
        return f"{name} is missing"
    if detail["type"] == "model_type":
        return f"{name} = {shorten(value)} must be a table: write [{name}]"
    return f"{name} = {shorten(value)}: {detail['msg'][0].lower()}{detail['msg'][1:]}"


def suggestion(path: list[str]) -> str:
    known = list(SECTIONS) if len(path) == 1 else list(SECTIONS[path[0]].model_fields)
    if len(path) > 2 and (table := table_of(SECTIONS[path[0]].model_fields[path[1]])):
        known = list(table.model_fields)
    close = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {'.'.join([*path[:-1], close[0]])}?"
    if len(path) == 1:
        return f"; sections are {', '.join(known)}"
    return f"; `dragoman config` lists the options of [{path[0]}]"


def shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


# --- comparing ---------------------------------------------------------------------------------------------


def differences(before: Config, now: Config) -> list[str]:
    """What was changed, key by key: `train.max_steps 600 -> 800`."""
    old, new = before.model_dump(), now.model_dump()
    return [
        f"{name}.{key} {shorten(old[name][key])} -> {shorten(value)}"
        for name, keys in new.items()
        for key, value in keys.items()
        if old[name][key] != value
    ]


# --- printing ----------------------------------------------------------------------------------------------


def to_toml(config: Config, *, explained: bool = False) -> str:
    """All keys as TOML; with their explanations as comments when `explained`. Loads back to the same configuration."""
    parts = []
    for name, kind in SECTIONS.items():
        section = getattr(config, name)
        lines = [f"# {inspect.cleandoc(kind.__doc__ or '')}"] if explained else []
        lines.append(f"[{name}]")
        for key, field in kind.model_fields.items():
            if explained:
                lines += ["", *comment(field)]
            if not table_of(field):
                lines.append(f"{key} = {toml_value(getattr(section, key))}")
                continue
            for entry in getattr(section, key):  # the last key of its section: what follows a table belongs to it
                lines += ["", f"[[{name}.{key}]]", *(f"{inner} = {toml_value(value)}" for inner, value in entry)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def comment(field: FieldInfo) -> list[str]:
    text = inspect.cleandoc(field.description or "").splitlines()
    if table := table_of(field):
        text += [line for key, inner in table.model_fields.items() for line in (f"{key}:", *comment(inner))]
    else:
        text.append(f"({type_name(field)}{'' if field.is_required() else f', default {toml_value(field.default)}'})")
    return [f"# {line}".replace("# # ", "#   ") for line in text]


def table_of(field: FieldInfo) -> type[Section] | None:
    """Of a field that holds any number of tables: what one of them is."""
    kinds = [kind for kind in get_args(field.annotation) if isinstance(kind, type) and issubclass(kind, Section)]
    return kinds[0] if kinds else None


def type_name(field: FieldInfo) -> str:
    annotation = field.annotation
    parts = get_args(annotation)
    choices = [choice for choice in parts if isinstance(choice, str)]
    if choices:
        return "one of " + ", ".join(json.dumps(choice) for choice in choices)
    if get_origin(annotation) is dict:
        return "table of numbers"
    words = [word for part in parts for word in get_args(part) if isinstance(word, str)]
    if words:  # a number, or one of these
        return " or ".join(["whole number", *map(json.dumps, words)])
    limits = [f"{name} {bound}" for rule in field.metadata for name, bound in limits_of(rule)]
    plain = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    many = "list of texts" if "[str" in str(annotation) else "list of numbers"
    name = plain.get(annotation, many) if isinstance(annotation, type) else many
    return ", ".join([name, *limits])


def limits_of(rule: Any) -> list[tuple[str, Any]]:
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    return [(word, getattr(rule, attribute)) for attribute, word in words.items() if hasattr(rule, attribute)]


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value) if "." in repr(value) or "inf" in repr(value) else repr(value).replace("e", ".0e")
    return json.dumps(value, ensure_ascii=False)
