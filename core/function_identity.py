"""Tell a plain function from another one, where its code and a few plain values say all it does.

A function cannot be stored, but a run that it began must not be continued by another. So it is
reduced to bytes: its instructions, constants, defaults, the values that it closes over, and what
it finds under global names. Wherever something else could decide what it does (an object, a class,
a file, a module other than NumPy and math), there is no answer rather than a wrong one.

Equal bytes mean the same function. Different bytes need not mean another one: another version of
Python compiles to other instructions. What NumPy itself does, its version says.
"""

from __future__ import annotations

import builtins
import dis
import math
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

MODULES = (math, np, np.linalg)
# names that lead out of the function: to files, to other modules, to code made of text
ELSEWHERE = frozenset(
    (
        "__import__", "breakpoint", "compile", "ctypeslib", "delattr", "eval", "exec", "f2py",
        "fromfile", "fromregex", "genfromtxt", "getattr", "globals", "input", "lib", "load",
        "loadtxt", "locals", "memmap", "open", "setattr", "testing", "vars",
    )
)  # fmt: skip
# instructions that read a global name, and those that change what others find or import
READS = ("LOAD_GLOBAL", "LOAD_NAME")
REFUSED = ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "IMPORT_FROM", "IMPORT_STAR")


class _Unknown(Exception):
    """Something besides code and plain values decides what the function does."""


def function_bytes(function: Any) -> bytes | None:
    """What a plain Python function does, as bytes; None where that cannot be told."""
    if not isinstance(function, types.FunctionType):
        return None
    try:
        return "\n".join(_function(function, [])).encode("utf-8", "surrogatepass")
    except _Unknown:
        return None


def _function(function: types.FunctionType, within: list[types.FunctionType]) -> Iterator[str]:
    if function in within:  # it calls itself, or one that calls it
        yield f"function {within.index(function)}"
        return
    if vars(function):
        raise _Unknown  # attributes are a memory that the code may read
    within.append(function)
    yield from _value(function.__defaults__, within)
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield name
        yield from _value(value, within)
    for cell in function.__closure__ or ():
        try:
            yield from _value(cell.cell_contents, within)
        except ValueError:  # an empty cell
            raise _Unknown from None
    for code in _codes(function.__code__):
        yield from _code(code)
        for instruction in dis.get_instructions(code):
            if instruction.opname in REFUSED:
                raise _Unknown
            if instruction.opname in READS:
                yield str(instruction.argval)
                yield from _global(function.__globals__, str(instruction.argval), within)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _code(code: types.CodeType) -> Iterator[str]:
    if ELSEWHERE & {*code.co_names, *code.co_varnames}:
        raise _Unknown
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    yield repr((code.co_code.hex(), code.co_exceptiontable.hex(), arguments, names))
    for constant in code.co_consts:
        if not isinstance(constant, types.CodeType):
            yield from _value(constant, [])


def _global(names: dict[str, Any], name: str, within: list[types.FunctionType]) -> Iterator[str]:
    if name in names:
        yield from _value(names[name], within)
    elif hasattr(builtins, name):
        yield "builtin"
    else:
        raise _Unknown


def _value(value: Any, within: list[types.FunctionType]) -> Iterator[str]:
    """A value that cannot change, or an array; with its type, so that 1 is not True."""
    if isinstance(value, types.FunctionType):
        yield from _function(value, within)
    elif any(value is module for module in MODULES):
        yield f"module {value.__name__}"
    elif value is None or value is ... or value is NotImplemented:
        yield repr(value)
    elif type(value) in (tuple, frozenset):
        yield f"{type(value).__name__} of {len(value)}"
        for part in sorted(value, key=repr) if type(value) is frozenset else value:
            yield from _value(part, within)
    elif type(value) in (bool, int, float, complex, str, bytes):
        yield f"{type(value).__name__} {value!r}"
    elif type(value) is np.ndarray and value.dtype.kind in "biufc":
        yield f"array {value.dtype.str} {value.shape} {np.ascontiguousarray(value).tobytes().hex()}"
    elif isinstance(value, np.bool_ | np.number):
        yield f"{value.dtype.str} {value.tobytes().hex()}"
    else:
        raise _Unknown
