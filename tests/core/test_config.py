import enum
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.config import (
    ConfigError,
    apply_settings,
    build,
    dump_toml,
    load_config,
    resolved,
)


class Device(enum.Enum):
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True)
class Algorithm:
    name: Literal["PPO", "SAC"] = "PPO"
    learning_rate: float = 3e-4
    hidden: tuple[int, ...] = (64, 64)
    clip: float | None = 0.2

    def __post_init__(self) -> None:
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate = {self.learning_rate}: must be positive")


@dataclass(frozen=True)
class Training:
    environment: str
    steps: int = 1000
    algorithm: Algorithm = field(default_factory=Algorithm)
    arguments: dict[str, Any] = field(default_factory=dict)
    wrappers: list[str] = field(default_factory=list)
    horizon: int | None = 4
    sample: str | None = None
    bounds: tuple[float, float] = (0.0, 1.0)
    limits: Mapping[str, float] = field(default_factory=dict)
    seed: int | float = 0
    device: Device = Device.CPU
    folder: Path = Path("runs")
    normalise: bool = False


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# --- files -------------------------------------------------------------------------------------


def test_toml_and_yaml_give_the_same_configuration(tmp_path):
    toml = (
        'environment = "NMRRelax"\nsteps = 500\n[algorithm]\nlearning_rate = 1e-3\nhidden = [8]\n'
    )
    yaml = "environment: NMRRelax\nsteps: 500\nalgorithm:\n  learning_rate: 1e-3\n  hidden: [8]\n"
    first = load_config(written(tmp_path, "a.toml", toml))
    second = load_config(written(tmp_path, "a.yaml", yaml))
    assert first == second
    assert build(Training, first).algorithm == Algorithm(learning_rate=1e-3, hidden=(8,))


@pytest.mark.parametrize(
    ("scalar", "value"),  # YAML 1.2.2, section 10.3.2; PyYAML alone gives the values on the right
    [
        ("1e-3", 1e-3),  # "1e-3"
        ("no", "no"),  # False
        ("on", "on"),  # True
        ("1:30", "1:30"),  # 90
        ("2026-01-02", "2026-01-02"),  # a date
        ("010", 10),  # 8
        ("-.inf", -math.inf),
        (".5", 0.5),
        ("true", True),
        ("null", None),
        ("~", None),
        ("<<", "<<"),
        ("+7", 7),
        ("1.5.2", "1.5.2"),
    ],
)
def test_yaml_scalars_follow_version_1_2(tmp_path, scalar, value):
    loaded = load_config(written(tmp_path, "a.yml", f"key: {scalar}\n"))["key"]
    assert loaded == value
    assert type(loaded) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{}", "ends in .toml, .yaml or .yml"),
        ("a.toml", "a = 1\na = 2\n", "not TOML.*line 2"),
        ("a.toml", "a = 1\n[a]\n", "not TOML"),
        ("a.toml", "a = " + "[" * 100_000, "nested too deeply; allowed 62 levels"),
        ("a.toml", "a = " + "[" * 62 + "]" * 62, "nested too deeply; allowed 62 levels"),
        ("a.yaml", "a: 1\nb: 2\na: 3\n", "'a' is given twice.*line 3"),
        ("a.yaml", "x:\n  a: 1\n  a: 1\n", "'a' is given twice"),
        ("a.yaml", "1: 2\n", "key 1 is not a string"),
        ("a.yaml", "{[1]: 2}\n", "is not a string"),
        ("a.yaml", "a: &x [1]\nb: *x\n", "anchors and aliases are not supported.*line 1"),
        ("a.yaml", "a: !!python/object/apply:os.system [true]\n", "tags such as"),
        ("a.yaml", "- 1\n", "holds a list"),
        ("a.yaml", "a: [\n", "not plain YAML"),
        ("a.yaml", "a: 1\n---\nb: 2\n", "not plain YAML"),
        ("a.yaml", "[" * 100_000, "nested too deeply; allowed 62 levels"),
        ("a.yaml", "a: " + "[" * 62 + "]" * 62, "nested too deeply; allowed 62 levels"),
        ("a.yaml", "a: " + "1" * 10_000, "not plain YAML"),
    ],
)
def test_malformed_files_are_refused_by_name(tmp_path, name, text, message):
    path = written(tmp_path, name, text)
    with pytest.raises(ConfigError, match=rf"(?s){name}.*{message}|{message}"):
        load_config(path)


def test_missing_and_undecodable_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'a = "\xe9"')
    with pytest.raises(ConfigError, match="byte 5 is not UTF-8"):
        load_config(tmp_path / "latin.toml")


def test_byte_order_mark_and_empty_file_are_accepted(tmp_path):
    (tmp_path / "bom.toml").write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert load_config(tmp_path / "bom.toml") == {"a": 1}
    assert load_config(written(tmp_path, "empty.yaml", "# nothing\n")) == {}


# --- --set key=value ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        ("steps=10", {"steps": 10}),
        ("steps = 1e6", {"steps": 1e6}),
        ("sample=oil", {"sample": "oil"}),
        ("folder=/data/my runs/α-1", {"folder": "/data/my runs/α-1"}),
        ("sample='1e6'", {"sample": "1e6"}),
        ("sample=''", {"sample": ""}),
        ("flag=true", {"flag": True}),
        ("algorithm.hidden=[8, 8]", {"algorithm": {"name": "PPO", "hidden": [8, 8]}}),
        ("new.deep.key=-inf", {"new": {"deep": {"key": -math.inf}}}),
        ('arguments."a.b"=1', {"arguments": {"a.b": 1}}),
        ("a={x = 1, y = [2]}", {"a": {"x": 1, "y": [2]}}),
        ("date=2026-13-45", {"date": "2026-13-45"}),
        ("equation=a", {"equation": "a"}),
    ],
)
def test_settings_are_toml_values_or_bare_words(setting, changed):
    config = {"steps": 1, "algorithm": {"name": "PPO"}}
    assert apply_settings(config, [setting]) == config | changed
    assert config == {"steps": 1, "algorithm": {"name": "PPO"}}  # the given one is left alone


def test_later_settings_win():
    assert apply_settings({}, ["a.b=1", "a.c=2", "a.b=3"]) == {"a": {"b": 3, "c": 2}}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("steps", "must be key=value"),
        ("=1", "is not a key"),
        ("a..b=1", "is not a key"),
        ("a b=1", "is not a key"),
        ("a\nb=1", "is not a key"),
        ("steps=", "a value is missing"),
        ("steps=[1, 2", "neither a TOML value nor a bare word"),
        ("steps='x", "neither a TOML value nor a bare word"),
        ("steps=1\nseed = 3", "neither a TOML value nor a bare word"),
        ("steps.x=1", "steps is a number, which has no keys"),
    ],
)
def test_malformed_settings_are_refused(setting, message):
    with pytest.raises(ConfigError, match=message):
        apply_settings({"steps": 3}, [setting])


# --- building ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"stepz": 1},
            "unknown key 'stepz': did you mean 'steps'\\? known are environment, steps",
        ),
        (
            {"algorithm": {"leraning_rate": 1}},
            "unknown key 'algorithm.leraning_rate': did you mean 'algorithm.learning_rate'\\?",
        ),
        ({"steps": 1.5}, "steps = 1.5: must be a whole number"),
        ({"steps": True}, "steps = True: must be a whole number"),
        ({"steps": "10"}, "steps = '10': must be a whole number"),
        ({"steps": None}, "steps = None: must be a whole number"),
        ({"normalise": 1}, "normalise = 1: must be true or false"),
        ({"environment": 3}, "environment = 3: must be a string"),
        ({"horizon": "four"}, "horizon = 'four': must be a whole number or \"none\""),
        ({"algorithm": 3}, "algorithm = 3: must be a table of Algorithm"),
        (
            {"algorithm": {"name": "DQN"}},
            'algorithm.name = \'DQN\': must be one of "PPO", "SAC"',
        ),
        ({"algorithm": {"hidden": [64, "x"]}}, "algorithm.hidden\\[1\\] = 'x': must be a whole"),
        ({"algorithm": {"hidden": 64}}, "algorithm.hidden = 64: must be a list, each a whole"),
        ({"wrappers": "TimeLimit"}, "wrappers = 'TimeLimit': must be a list, each a string"),
        ({"bounds": [1.0]}, "bounds = \\[1.0\\]: must be a list of a number, a number"),
        ({"limits": {"a b": "x"}}, "limits.\"a b\" = 'x': must be a number"),
        ({"device": "TPU"}, 'device = \'TPU\': must be one of "CPU", "CUDA"'),
        ({"arguments": []}, "arguments = \\[\\]: must be a table"),
        ({"algorithm": {"learning_rate": 0}}, "algorithm: learning_rate = 0.0: must be positive"),
    ],
)
def test_wrong_values_are_refused_with_key_value_and_what_is_allowed(change, message):
    with pytest.raises(ConfigError, match=f"^run.toml: {message}"):
        build(Training, {"environment": "NMRRelax"} | change, source="run.toml")


def test_missing_value_is_named():
    with pytest.raises(ConfigError, match="environment is missing: must be a string"):
        build(Training, {})


def test_whole_floats_are_counts_and_integers_are_numbers():
    training = build(Training, {"environment": "x", "steps": 1e6, "bounds": [0, 2]})
    assert training.steps == 1_000_000
    assert isinstance(training.steps, int)
    assert training.bounds == (0.0, 2.0)
    assert all(isinstance(end, float) for end in training.bounds)


def test_union_keeps_the_exact_type():
    assert isinstance(build(Training, {"environment": "x", "seed": 1}).seed, int)
    assert isinstance(build(Training, {"environment": "x", "seed": 1.0}).seed, float)


@pytest.mark.parametrize("value", [None, "none"])
def test_none_is_written_as_a_word_where_a_field_admits_it(value):
    training = build(Training, {"environment": "none", "horizon": value, "arguments": {"a": value}})
    assert training.horizon is None
    assert training.arguments == {"a": None}
    assert training.environment == "none"  # a plain string stays one


# --- writing -----------------------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
number = st.floats(allow_nan=False)
integers = st.integers(-(2**63), 2**64 - 1)
plain = st.recursive(
    st.none() | st.booleans() | integers | number | text.filter(lambda word: word != "none"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
algorithms = st.builds(
    Algorithm,
    name=st.sampled_from(["PPO", "SAC"]),
    learning_rate=st.floats(min_value=0, exclude_min=True),
    hidden=st.lists(integers).map(tuple),
    clip=st.none() | number,
)
trainings = st.builds(
    Training,
    environment=text,
    steps=integers,
    algorithm=algorithms,
    arguments=st.dictionaries(text, plain, max_size=3),
    wrappers=st.lists(text, max_size=3),
    horizon=st.none() | integers,
    sample=st.none() | text.filter(lambda word: word != "none"),
    bounds=st.tuples(number, number),
    limits=st.dictionaries(text, number, max_size=3),
    seed=integers | number,
    device=st.sampled_from(Device),
    folder=st.sampled_from([Path("runs"), Path("a b/ü")]),
    normalise=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(trainings)
def test_resolved_configuration_is_read_back_as_the_same_run(training):
    document = resolved(training)
    loaded = tomllib.loads(dump_toml(document))
    assert loaded == document
    again = build(Training, loaded)
    assert again == training
    # 1 == 1.0 == True, but not as text
    assert json.dumps(resolved(again), sort_keys=True) == json.dumps(document, sort_keys=True)


def test_resolved_configuration_names_every_field():
    assert dump_toml(resolved(Training("NMRRelax", arguments={"n": 3}, sample="oil"))) == (
        'environment = "NMRRelax"\n'
        "steps = 1000\n"
        "wrappers = []\n"
        "horizon = 4\n"
        'sample = "oil"\n'
        "bounds = [0.0, 1.0]\n"
        "seed = 0\n"
        'device = "CPU"\n'
        'folder = "runs"\n'
        "normalise = false\n"
        "\n[algorithm]\n"
        'name = "PPO"\n'
        "learning_rate = 0.0003\n"
        "hidden = [64, 64]\n"
        "clip = 0.2\n"
        "\n[arguments]\n"
        "n = 3\n"
        "\n[limits]\n"
    )


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (Training("x", sample="none"), 'sample = "none": would be read back as None'),
        (Training("x", arguments={"a": "none"}), 'arguments.a = "none": would be read back'),
        (Training("x", arguments={"f": print}), "arguments.f = .* cannot stand in a file"),
    ],
)
def test_what_a_file_cannot_hold_is_refused(training, message):
    with pytest.raises(ConfigError, match=message):
        resolved(training)


@pytest.mark.parametrize("value", [None, print, b"x", "\ud800"])
def test_toml_writer_refuses_what_toml_does_not_have(value):
    with pytest.raises(ConfigError):
        dump_toml({"a": value})


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(text, plain, max_size=4))
def test_toml_writer_agrees_with_the_reader_of_the_standard_library(document):
    def without_none(value):
        if isinstance(value, dict):
            return {key: without_none(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [without_none(entry) for entry in value]
        return 0 if value is None else value

    document = without_none(document)
    assert tomllib.loads(dump_toml(document)) == document
