"""Settings from files and the command line, checked against the dataclass that uses them.

A configuration goes through four steps: `load_config` reads a file, `apply_settings` adds
`--set key=value`, `build` makes the dataclass and refuses what it does not know, and `resolved`
with `dump_toml` writes every value down, so that the written file gives the same run again.

TOML has no null: wherever a field admits None, the string `"none"` means it.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import enum
import json
import math
import numbers
import os
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import yaml

from .safe_files import TEXT_LIMIT, MalformedFile, read_limited

T = TypeVar("T")

NONE = "none"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
DEPTH = 64  # of tables and lists in one another, as in run.json
INTEGERS = (-(2**63), 2**64)  # signed as TOML has them, unsigned as seeds are
_BARE_WORD = re.compile(r"[^\s\"'\[\]{},=#][^\"'\[\]{},#\n]*")


class ConfigError(ValueError):
    """A configuration that cannot be read or does not fit; the message names file and key."""


class MalformedConfig(ConfigError, MalformedFile):
    """A configuration file that is not what its suffix says, so that it has no keys at all."""


def load_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a TOML or YAML file.

    YAML is read as plain data by YAML 1.2's rules for scalars: `1e-3` is a number, `no` is a
    word. Anchors, aliases and tags are refused.

    Args:
        path: a file that ends in `.toml`, `.yaml` or `.yml`, in UTF-8 (a byte order mark is
            skipped), of at most 16 MiB.

    Raises:
        MalformedConfig: not UTF-8, TOML or plain YAML; a key given twice or that is no string.
        UnsafeFile: a larger file.
        ConfigError: another suffix, a file that is not there, or a document that is no table.
    """
    path = Path(path)
    if path.suffix.lower() not in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"{path}: a configuration ends in .toml, .yaml or .yml")
    try:
        text = read_limited(path, TEXT_LIMIT).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise MalformedConfig(
            f"{path}: byte {error.start} is not UTF-8, the only encoding of a configuration"
        ) from error
    if path.suffix.lower() == ".toml":
        try:
            return _of_sound_depth(tomllib.loads(text), path)
        except ConfigError:
            raise
        except RecursionError:
            raise _too_deep(path) from None
        except ValueError as error:
            raise MalformedConfig(f"{path}: not TOML: {error}") from error
    try:
        document = yaml.load(text, Loader=_PlainLoader)  # noqa: S506 - a subclass of SafeLoader
    except RecursionError:
        raise _too_deep(path) from None
    except (yaml.YAMLError, ValueError) as error:
        raise MalformedConfig(f"{path}: not plain YAML: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: holds a {_kind(document)}; must be keys with values")
    return _of_sound_depth(document, path)


def apply_settings(config: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """A copy of the configuration with `key=value` settings applied, later ones last.

    Args:
        config: as read by `load_config`.
        settings: such as `"algorithm.learning_rate=3e-4"`: a dotted key, then a TOML value; a
            bare word is a string. A part of a key that holds dots is written in double quotes.

    Raises:
        ConfigError: no `=`, an empty key or value, a malformed value, or a key that goes through
            something that is not a table.
    """
    result: dict[str, Any] = copy.deepcopy(dict(config))
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}: must be key=value")
        parts = _key_parts(key.strip(), setting)
        table = result
        for depth, part in enumerate(parts[:-1]):
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise ConfigError(
                    f"--set {setting}: {'.'.join(parts[: depth + 1])} is a {_kind(table)}, "
                    "which has no keys"
                )
        table[parts[-1]] = _setting_value(text.strip(), setting)
    return result


def build(cls: type[T], mapping: Mapping[str, Any], *, source: str = "") -> T:
    """Make a dataclass, and those nested in it, from plain data; nothing is guessed.

    Fields may be bool, int, float, str, Path, enums (by name), Literal, None, unions, list,
    tuple, dict or Mapping with string keys, dataclasses, and Any. An int is accepted for a float,
    a float without fraction (such as `1e6`) for an int; a bool is neither.

    Args:
        cls: the dataclass.
        mapping: key -> value.
        source: the file's name, put in front of every message.

    Raises:
        ConfigError: an unknown key (with the nearest known one), a missing one, a value of
            another type, or one that the class itself refuses.
    """
    try:
        instance: T = _build_dataclass(cls, mapping, "")
        return instance
    except ConfigError as error:
        if not source:
            raise
        raise ConfigError(f"{source}: {error}") from (error.__cause__ or None)


def checked(document: Any, fields: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The named fields of a document, each of its type; other fields are left alone.

    Args:
        document: plain data.
        fields: name -> type, as the fields of a dataclass in `build`.
        where: name of the document in the messages.

    Raises:
        ConfigError: not a table, or a field that is missing or of another type; the message says
            which, and what is allowed.
    """
    if not isinstance(document, Mapping):
        raise _wrong(where or "document", document, f"a table with {', '.join(fields)}")
    values = {}
    for name, hint in fields.items():
        if name in document:
            values[name] = _convert(hint, document[name], _join(where, name))
        else:
            raise ConfigError(f"{_join(where, name)} is missing: must be {_describe(hint)}")
    return values


def resolved(config: Any) -> dict[str, Any]:
    """Every value of a dataclass as plain data, defaults included: what `build` reads back.

    Raises:
        ConfigError: a value that no file can hold.
    """
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"config = {config!r}: must be an instance of a dataclass")
    return _plain_dataclass(config, "")


def dump_toml(document: Mapping[str, Any]) -> str:
    """TOML text of plain data: tables, arrays, strings, numbers and truth values.

    Raises:
        ConfigError: anything else, such as None or a key that is not a string.
    """
    lines: list[str] = []
    _write_table(document, (), lines)
    return "\n".join(lines).lstrip("\n") + ("\n" if lines else "")


# --- reading -----------------------------------------------------------------------------------


class _PlainLoader(yaml.SafeLoader):
    """YAML as plain data: no duplicate keys, anchors or tags; scalars as in YAML 1.2."""

    yaml_implicit_resolvers = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.constructor.ConstructorError(
                None, None, "anchors and aliases are not supported", event.start_mark
            )
        if getattr(event, "tag", None) is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f"tags such as {event.tag} are not supported", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"key {key!r} is not a string; put it in quotes",
                    key_node.start_mark,
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.2.2, section 10.3.2 (core schema). PyYAML follows 1.1, where 1e-3 is a string.
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]
)
_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_PlainLoader.add_implicit_resolver(
    "tag:palestra:int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789")
)
_PlainLoader.add_implicit_resolver(
    "tag:palestra:float",
    re.compile(
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def _int_of_yaml(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))


def _float_of_yaml(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(re.sub(r"\.(?=[iInN])", "", loader.construct_scalar(node)))  # ".inf" is "inf"


_PlainLoader.add_constructor("tag:palestra:int", _int_of_yaml)
_PlainLoader.add_constructor("tag:palestra:float", _float_of_yaml)


def _key_parts(key: str, setting: str) -> list[str]:
    """The parts of a dotted TOML key."""
    try:
        nested: Any = tomllib.loads(f"{key} = 0") if "\n" not in key else None
    except tomllib.TOMLDecodeError:
        nested = None
    parts: list[str] = []
    while isinstance(nested, dict) and len(nested) == 1:
        part, nested = next(iter(nested.items()))
        parts.append(part)
    if nested != 0 or not parts or "=" in key:
        raise ConfigError(
            f"--set {setting}: {key!r} is not a key; keys are letters, digits, '_' and '-', "
            "joined by dots"
        )
    return parts


def _setting_value(text: str, setting: str) -> Any:
    if not text:
        raise ConfigError(f"--set {setting}: a value is missing; '' is the empty string")
    try:
        document = tomllib.loads(f"value = {text}") if "\n" not in text else {}
    except (ValueError, RecursionError):
        document = {}
    if set(document) == {"value"}:
        return _of_sound_depth(document, f"--set {setting[:40]}")["value"]
    if _BARE_WORD.fullmatch(text):
        return text
    raise ConfigError(f"--set {setting}: {text!r} is neither a TOML value nor a bare word")


def _of_sound_depth(document: dict[str, Any], name: str | Path) -> dict[str, Any]:
    """The document itself, if it is not too deep for what is written of it."""
    level: list[Any] = [document]
    for _ in range(DEPTH - 2):  # run.json puts it two levels down
        level = [
            part
            for value in level
            for part in (value.values() if isinstance(value, dict) else value)
            if isinstance(part, dict | list)
        ]
    if level:
        raise _too_deep(name)
    return document


def _too_deep(name: str | Path) -> ConfigError:
    kind = MalformedConfig if isinstance(name, Path) else ConfigError
    return kind(f"{name}: nested too deeply; allowed {DEPTH - 2} levels")


# --- building ----------------------------------------------------------------------------------


def _build_dataclass(cls: Any, mapping: Any, where: str) -> Any:
    if not isinstance(mapping, Mapping):
        raise _wrong(where, mapping, f"a table of {cls.__name__}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for key in mapping:
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"did you mean {_join(where, near[0])!r}? " if near else ""
            raise ConfigError(
                f"unknown key {_join(where, str(key))!r}: {hint}"
                f"known {'here ' if where else ''}are {', '.join(fields) or 'none'}"
            )
    values = {}
    for name, field in fields.items():
        if name in mapping:
            values[name] = _convert(hints[name], mapping[name], _join(where, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{_join(where, name)} is missing: must be {_describe(hints[name])}")
    try:
        return cls(**values)
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from error


def _convert(hint: Any, value: Any, where: str) -> Any:
    """The value as the type asks for, or a ConfigError that names key, value and type."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if hint is Any or hint is object:
        return _none_inside(value)
    if origin in (typing.Annotated, typing.Final):
        return _convert(arguments[0], value, where)
    if origin in (Union, types.UnionType):
        return _convert_union(hint, arguments, value, where)
    if origin is Literal:
        for allowed in arguments:
            if value == allowed and type(value) is type(allowed):
                return allowed
        if None in arguments and value == NONE:
            return None
        raise _wrong(where, value, _describe(hint))
    if hint is None or hint is types.NoneType:
        if value is None or value == NONE:
            return None
    elif hint is bool:
        if isinstance(value, bool):
            return value
    elif hint is int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            if not INTEGERS[0] <= value < INTEGERS[1]:
                raise _wrong(where, value, "a whole number of at most 64 bits")
            return value
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                raise _wrong(where, value, "a number below 1.8e308") from None
    elif hint is str:
        if isinstance(value, str):
            return value
    elif hint is Path:
        if isinstance(value, str | Path):
            return Path(value)
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if isinstance(value, str) and value in hint.__members__:
            return hint[value]
    elif dataclasses.is_dataclass(hint):
        return _build_dataclass(hint, value, where)
    elif (origin or hint) in (list, tuple) or (origin or hint) is Sequence:
        return _convert_sequence(hint, value, where)
    elif (origin or hint) in (dict, Mapping):
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            inner = arguments[1] if arguments else Any
            return {k: _convert(inner, entry, _join(where, k)) for k, entry in value.items()}
    else:
        raise TypeError(f"{where}: a field of type {hint} cannot be configured")
    raise _wrong(where, value, _describe(hint))


def _convert_union(hint: Any, members: Sequence[Any], value: Any, where: str) -> Any:
    if types.NoneType in members and (value is None or value == NONE):
        return None
    for member in members:  # the exact type first: 1 stays an int where int | float is allowed
        if isinstance(member, type) and type(value) is member:
            return value
    tables = [member for member in members if dataclasses.is_dataclass(member)]
    if len(tables) == 1 and isinstance(value, Mapping):
        return _build_dataclass(tables[0], value, where)
    for member in members:
        try:
            return _convert(member, value, where)
        except ConfigError:
            continue
    raise _wrong(where, value, _describe(hint))


def _convert_sequence(hint: Any, value: Any, where: str) -> Any:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise _wrong(where, value, _describe(hint))
    arguments = typing.get_args(hint)
    is_tuple = (typing.get_origin(hint) or hint) is tuple
    if is_tuple and arguments and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            raise _wrong(where, value, _describe(hint))
        inner: Sequence[Any] = arguments
    else:
        inner = [arguments[0] if arguments else Any] * len(value)
    items = [
        _convert(kind, item, f"{where}[{index}]")
        for index, (kind, item) in enumerate(zip(inner, value, strict=True))
    ]
    return tuple(items) if is_tuple else items


def _none_inside(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _none_inside(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_none_inside(entry) for entry in value]
    return None if isinstance(value, str) and value == NONE else value


def _describe(hint: Any) -> str:
    """A type in words."""
    simple = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a string",
        Path: "a path",
        None: f'"{NONE}"',
        types.NoneType: f'"{NONE}"',
        Any: "any value",
    }
    if hint in simple:
        return simple[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(member) for member in arguments)
    if origin is Literal:
        return "one of " + ", ".join(json.dumps(allowed) for allowed in arguments)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "one of " + ", ".join(json.dumps(name) for name in hint.__members__)
    if dataclasses.is_dataclass(hint):
        return f"a table of {getattr(hint, '__name__', hint)}"
    if (origin or hint) is tuple and arguments and arguments[-1] is not Ellipsis:
        return "a list of " + ", ".join(_describe(kind) for kind in arguments)
    if (origin or hint) in (dict, Mapping):
        return "a table"
    return "a list" + (f", each {_describe(arguments[0])}" if arguments else "")


def _wrong(where: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(f"{where or 'configuration'} = {shown(value)}: must be {allowed}")


def shown(value: Any) -> str:
    """A value in a message: `repr`, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write integers of more than 4300 digits
        return "an integer of more than 4300 digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _join(where: str, key: str) -> str:
    part = key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
    return f"{where}.{part}" if where else part


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, list):
        return "list"
    return {int: "number", float: "number", str: "string"}.get(type(value), type(value).__name__)


# --- writing -----------------------------------------------------------------------------------


def _plain_dataclass(config: Any, where: str) -> dict[str, Any]:
    hints = typing.get_type_hints(type(config))
    return {
        field.name: _plain(getattr(config, field.name), hints[field.name], _join(where, field.name))
        for field in dataclasses.fields(config)
        if field.init
    }


def _plain(value: Any, hint: Any, where: str) -> Any:
    if value is None:
        return NONE
    if isinstance(value, str) and not isinstance(value, enum.Enum):
        if value == NONE and _admits_none(hint):
            raise ConfigError(f'{where} = "{NONE}": would be read back as None')
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain_dataclass(value, where)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        hints = _item_hints(hint, len(value))
        return {
            str(key): _plain(entry, kind, _join(where, str(key)))
            for (key, entry), kind in zip(value.items(), hints, strict=True)
        }
    if isinstance(value, list | tuple):
        return [
            _plain(item, kind, f"{where}[{index}]")
            for index, (item, kind) in enumerate(
                zip(value, _item_hints(hint, len(value)), strict=True)
            )
        ]
    raise ConfigError(f"{where} = {value!r}: a {type(value).__name__} cannot stand in a file")


def _admits_none(hint: Any) -> bool:
    return hint in (Any, object) or bool({None, types.NoneType} & set(typing.get_args(hint)))


def _item_hints(hint: Any, count: int) -> Sequence[Any]:
    """The types of the entries of a list, a tuple or a table; Any where the type is a union."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType) or not arguments:
        return [Any] * count
    if origin is tuple and arguments[-1] is not Ellipsis:
        return list(arguments)
    return [arguments[1] if origin in (dict, Mapping) else arguments[0]] * count


def _write_table(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    values = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if path and (values or not tables):
        lines.extend(["", f"[{'.'.join(_toml_key(part) for part in path)}]"])
    for key, value in values.items():
        lines.append(f"{_toml_key(key)} = {_toml_value(value, (*path, key))}")
    for key, value in tables.items():
        _write_table(value, (*path, key), lines)


def _toml_key(key: Any) -> str:
    if not isinstance(key, str):
        raise ConfigError(f"key {key!r}: must be a string")
    return key if _BARE_KEY.fullmatch(key) else _toml_string(key)


def _toml_value(value: Any, path: tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        number = float(value)
        return repr(number) if math.isfinite(number) else str(number)  # inf, -inf, nan
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml_value(item, path) for item in value)}]"
    if isinstance(value, Mapping):
        entries = (f"{_toml_key(k)} = {_toml_value(v, (*path, k))}" for k, v in value.items())
        return f"{{{', '.join(entries)}}}"
    raise ConfigError(f"{'.'.join(path)} = {value!r}: TOML holds no {type(value).__name__}")


def _toml_string(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"{text!r}: is not Unicode text") from error
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
