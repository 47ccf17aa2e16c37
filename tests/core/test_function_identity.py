"""Plain functions are told apart by what they do, or there is no answer."""

import functools
import math
import random
import types

import numpy as np
import pytest

from palestra.function_identity import function_bytes
from palestra.policy import AgentPolicies, FunctionPolicy, LinearPolicy, RowFunctionPolicy
from palestra.policy_identity import fingerprint
from palestra.rollout import evaluate
from palestra.store import RunMismatch

from .toys import Drift

BODY = (
    "def f(x, k={default}, *, q={keyword}):\n    return g(x) * {constant} + np.{name}(x) + {read}\n"
)
USUAL = {"default": 1, "keyword": 2, "constant": 3, "name": "cos", "read": "GAIN"}


def made(text=BODY, helper="x + 1", gain=0.5, filled=True, before="", **changed):
    """The function f of a module of its own."""
    module = types.ModuleType("mine")
    module.np = np
    text = text.format(**{**USUAL, **changed}) if filled else text
    exec(f"{before}GAIN = {gain}\ndef g(x):\n    return {helper}\n{text}", module.__dict__)
    return module.f


def test_the_same_text_is_the_same_function_wherever_it_stands_and_however_often_it_ran():
    once, again = made(), made(before="\n\n\n")
    first = function_bytes(once)
    assert first is not None
    assert first == function_bytes(again)
    for _ in range(100):  # the interpreter rewrites what runs often
        once(1.0)
    assert function_bytes(once) == first


@pytest.mark.parametrize(
    "changed",
    [
        {"default": 2},
        {"default": True},
        {"keyword": 3},
        {"constant": 4},
        {"constant": 3.0},
        {"name": "sin"},
        {"read": "-GAIN"},
        {"gain": 0.25},
        {"gain": "np.array([0.5])"},
        {"gain": "(0.5,)"},
        {"helper": "x + 2"},
        {"helper": "(lambda y: y + 2)(x)"},
    ],
    ids=str,
)
def test_whatever_decides_what_a_function_does_tells_it_from_another(changed):
    assert function_bytes(made(**changed)) not in (None, function_bytes(made()))


def test_values_that_a_function_closes_over_are_part_of_it():
    def scaled(gain):
        return lambda x: gain * x

    bytes_of = [function_bytes(scaled(g)) for g in (1.0, 2.0, True, 1, np.ones(2), np.zeros(2))]
    assert None not in bytes_of
    assert len(set(bytes_of)) == 6
    assert function_bytes(scaled(np.ones(2))) == bytes_of[4]


def test_functions_that_call_each_other_are_told_apart():
    text = "def f(x):\n    return h(x - 1) if x > 0 else {constant}\ndef h(x):\n    return f(x)\n"
    assert function_bytes(made(text)) == function_bytes(made(text))
    assert function_bytes(made(text)) != function_bytes(made(text, constant=4))


class Memory:
    gain = 1.0

    def act(self, x):
        return self.gain * x


MEMORY = Memory()
TEXTS = {
    "an object": "MEMORY = __import__('types').SimpleNamespace(k=1)\ndef f(x): return MEMORY.k * x",
    "a list": "MEMORY = [1.0]\ndef f(x): return MEMORY[0] * x",
    "a class": "class M: k = 1\ndef f(x): return M.k * x",
    "a file": "def f(x): return np.load('gain.npy') @ x",
    "a file, by builtin": "def f(x): return float(open('gain').read()) * x",
    "a module": "import random\ndef f(x): return random.random() * x",
    "an import": "def f(x):\n    import mine\n    return mine.act(x)",
    "a global that it sets": "k = 0\ndef f(x):\n    global k\n    k += 1\n    return k * x",
    "a name that is nowhere": "def f(x): return nowhere * x",
    "an attribute of its own": "def f(x): return f.k * x\nf.k = 2",
    "a default that changes": "def f(x, seen=[]):\n    seen.append(1)\n    return len(seen) * x",
    "code made of text": "def f(x): return eval('x + 1')",
    "a decorated function": "import functools\ndef f(x): return g(x)\nf = functools.wraps(g)(f)",
    "something inside a lambda": "k = [1]\ndef f(x): return (lambda y: k[0] * y)(x)",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_where_something_else_decides_there_is_no_answer(text):
    assert function_bytes(made(text, filled=False)) is None


def test_only_plain_functions_have_an_answer():
    for other in (Memory().act, functools.partial(made(), k=1), math.sin, Memory, np.tanh, random):
        assert function_bytes(other) is None


# --- as policies ----------------------------------------------------------------------------------


def left(observation):
    return np.full((len(observation), 1), -1.0, np.float32)


def right(observation):
    return np.full((len(observation), 1), 1.0, np.float32)


def test_a_run_goes_on_with_the_same_function_and_with_no_other(tmp_path, recwarn):
    arguments = {"run": tmp_path / "run", "name": "it", "episodes": 8, "width": 4, "seed": 1}
    first = evaluate(left, Drift, **arguments)
    assert evaluate(left, Drift, **arguments).table.equals(first.table)
    with pytest.raises(RunMismatch, match="policy_sha256"):
        evaluate(right, Drift, **arguments)
    assert not [w for w in recwarn if "cannot be told" in str(w.message)]


def test_a_policy_with_a_part_that_is_not_known_has_no_fingerprint():
    known, unknown = LinearPolicy(np.ones((1, 1))), FunctionPolicy(Memory().act)
    assert fingerprint(AgentPolicies({"a": known, "b": known}, ("a", "b"))) is not None
    assert fingerprint(AgentPolicies({"a": known, "b": unknown}, ("a", "b"))) is None


def test_a_function_of_rows_is_another_policy_than_one_of_batches():
    assert fingerprint(FunctionPolicy(left)) != fingerprint(RowFunctionPolicy(left))
