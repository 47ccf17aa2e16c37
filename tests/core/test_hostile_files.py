"""Files made to do harm are refused by a clear error, and nothing happens.

Every payload, if it ran, would create the folder `pwned`. Each test asserts that it is not there.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.mat_file import UNPACKED, read_mat
from palestra.policy import LinearPolicy
from palestra.policy_files import DESCRIPTION, WEIGHTS, policy_files, read_policy
from palestra.policy_loading import load_policy
from palestra.safe_files import (
    MalformedFile,
    UnsafeFile,
    read_matrix,
    read_tensors,
    read_zip,
    strict_json,
    write_tensors,
)
from palestra.sb3_zip import read_sb3_zip

torch = pytest.importorskip("torch")
sb3 = pytest.importorskip("stable_baselines3")

OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,), np.float32)
ACTIONS = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Env(gym.Env):
    observation_space, action_space = OBSERVATIONS, ACTIONS
    agents = ()

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}


class Payload:
    """Unpickling it creates a folder."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.fixture
def pwned(tmp_path):
    """The folder that a payload would create; fails the test if one did."""
    folder = tmp_path / "pwned"
    yield folder
    assert not folder.exists(), "the payload ran"


def zipped(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def test_the_payload_would_work(tmp_path):
    pickle.loads(pickle.dumps(Payload(tmp_path / "pwned")))
    assert (tmp_path / "pwned").is_dir()


# --- Stable-Baselines3's zips ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def sb3_members():
    buffer = io.BytesIO()
    algorithm = sb3.PPO("MlpPolicy", Env(), device="cpu", seed=0)
    algorithm.save(buffer)
    members = read_zip(buffer.getvalue(), "model")
    return algorithm, members


def test_a_serialised_payload_in_the_zip_is_not_touched(tmp_path, pwned, sb3_members):
    """`PPO.load` of Stable-Baselines3 2.9.2 creates the folder."""
    algorithm, members = sb3_members
    payload = base64.b64encode(pickle.dumps(Payload(pwned))).decode()
    data = json.loads(members["data"])
    for key in [*data, "extra"]:
        data[key] = {":type:": "<class 'dict'>", ":serialized:": payload}
    changed = {**members, "data": json.dumps(data).encode()}
    path = zipped(tmp_path / "model.zip", changed.items())
    policy = load_policy(path, Env())
    x = np.random.default_rng(0).uniform(-1, 1, (100, 3)).astype(np.float32)
    assert np.array_equal(policy.predict(x)[0], algorithm.predict(x, deterministic=True)[0])


def torch_bytes(value) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_a_payload_among_the_tensors_is_refused(tmp_path, pwned, sb3_members):
    _, members = sb3_members
    hostile = torch_bytes({"action_net.weight": Payload(pwned)})
    path = zipped(tmp_path / "model.zip", {**members, "policy.pth": hostile}.items())
    with pytest.raises(UnsafeFile, match="more than tensors"):
        load_policy(path, Env())


def test_a_bare_pickle_in_the_place_of_the_tensors_is_refused(tmp_path, pwned, sb3_members):
    _, members = sb3_members
    hostile = pickle.dumps(Payload(pwned))
    path = zipped(tmp_path / "model.zip", {**members, "policy.pth": hostile}.items())
    with pytest.raises(UnsafeFile, match="never unpickled"):
        load_policy(path, Env())


def test_other_members_are_never_looked_into(tmp_path, pwned, sb3_members):
    _, members = sb3_members
    hostile = torch_bytes(Payload(pwned))
    changed = {**members, "policy.optimizer.pth": hostile, "pytorch_variables.pth": hostile}
    load_policy(zipped(tmp_path / "model.zip", changed.items()), Env())


def state(algorithm):
    return {key: tensor.clone() for key, tensor in algorithm.policy.state_dict().items()}


def hostile_states():
    def huge_view(tensors):
        tensors["mlp_extractor.policy_net.0.weight"] = torch.zeros(1).expand(10**9, 10**3)

    def huge_layers(tensors):
        tensors["mlp_extractor.policy_net.0.weight"] = torch.zeros(10**6, 1)
        tensors["mlp_extractor.policy_net.2.weight"] = torch.zeros(10**6, 1)

    return [
        pytest.param(huge_view, id="view"),
        pytest.param(huge_layers, id="layers"),
        pytest.param(lambda t: t["action_net.bias"].fill_(float("nan")), id="nan"),
        pytest.param(lambda t: t.pop("action_net.bias"), id="missing"),
        pytest.param(lambda t: t.update({"action_net.bias": torch.zeros(3)}), id="shape"),
        pytest.param(lambda t: t.update({"action_net.bias": torch.zeros(2).half()}), id="type"),
        pytest.param(
            lambda t: t.update({"action_net.bias": torch.zeros(2).to_sparse()}), id="sparse"
        ),
        pytest.param(lambda t: t.update({"extra": torch.zeros(2).bfloat16()}), id="bfloat16"),
        pytest.param(lambda t: t.update({"extra": 3}), id="number"),
        pytest.param(lambda t: (t.clear(), t.update({"a": torch.zeros(1)})), id="foreign"),
    ]


@pytest.mark.parametrize("change", hostile_states())
def test_unfit_tensors_are_malformed_and_allocate_nothing(tmp_path, sb3_members, change):
    algorithm, members = sb3_members
    tensors = state(algorithm)
    change(tensors)
    changed = {**members, "policy.pth": torch_bytes(dict(tensors))}
    path = zipped(tmp_path / "model.zip", changed.items())
    tracemalloc.start()
    with pytest.raises(MalformedFile):
        read_sb3_zip(path, (OBSERVATIONS, ACTIONS))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000_000


@pytest.mark.parametrize("name", ["policy.pth", "data"])
def test_missing_or_cut_members_are_malformed(tmp_path, sb3_members, name):
    _, members = sb3_members
    rest = {key: value for key, value in members.items() if key != name}
    with pytest.raises(MalformedFile, match="expected members"):
        load_policy(zipped(tmp_path / "a.zip", rest.items()), Env())
    cut = {**members, name: members[name][:-30]}
    with pytest.raises(MalformedFile):
        load_policy(zipped(tmp_path / "b.zip", cut.items()), Env())


# --- zip files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/evil", "a/b", "C:\\evil", "..", ".", "a\\b", "a b", "", "é", "x/"],
)
def test_names_outside_the_folder_are_refused(tmp_path, name):
    path = zipped(tmp_path / "p.zip", [("policy.json", b"{}"), ("xxxxx", b"")])
    raw = path.read_bytes()
    stored = name.encode()[:5].ljust(5, b"x") if name not in ("", ".", "..") else name.encode()
    if len(stored) == 5:
        path.write_bytes(raw.replace(b"xxxxx", stored))
    else:
        path = zipped(tmp_path / "q.zip", [(name or " ", b"")])
    before = sorted(tmp_path.rglob("*"))
    if stored == b"xxxxx":
        pytest.fail("the name was not written")
    with pytest.raises((UnsafeFile, MalformedFile)):
        read_zip(path, "p.zip")
    assert sorted(tmp_path.rglob("*")) == before


def test_path_traversal_writes_nothing(tmp_path):
    files = policy_files(LinearPolicy(np.eye(2)))
    path = zipped(tmp_path / "p.zip", [*files.items(), ("../../evil.json", b"{}")])
    with pytest.raises(UnsafeFile, match="member name"):
        read_policy(path)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["p.zip"]


def test_zip_bombs_are_refused_before_they_are_unpacked(tmp_path):
    bomb = zipped(
        tmp_path / "bomb.zip", [("policy.json", b"0" * 200_000_000)], zipfile.ZIP_DEFLATED
    )
    assert bomb.stat().st_size < 300_000
    tracemalloc.start()
    with pytest.raises(UnsafeFile, match="unpacks to 200000000 bytes"):
        read_policy(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000


def test_a_bomb_inside_the_tensors_is_refused(tmp_path, sb3_members):
    _, members = sb3_members
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("archive/data/0", b"\0" * 50_000_000)
    path = zipped(tmp_path / "m.zip", {**members, "policy.pth": inner.getvalue()}.items())
    with pytest.raises(UnsafeFile, match="unpacks to 50000000"):
        load_policy(path, Env())


def test_too_many_members_are_refused(tmp_path):
    path = zipped(tmp_path / "many.zip", [(f"m{i}", b"") for i in range(65)])
    with pytest.raises(UnsafeFile, match="65 members, allowed 64"):
        read_policy(path)


def test_a_member_that_lies_about_its_size_is_malformed(tmp_path):
    path = zipped(tmp_path / "p.zip", [("policy.json", b"x" * 5000)], zipfile.ZIP_DEFLATED)
    raw = path.read_bytes()
    assert raw.count(struct.pack("<L", 5000)) == 2
    path.write_bytes(raw.replace(struct.pack("<L", 5000), struct.pack("<L", 50)))
    with pytest.raises(MalformedFile):
        read_zip(path, "p.zip")


def test_members_given_twice_are_malformed(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate"):
        path = zipped(tmp_path / "p.zip", [("policy.json", b"{}"), ("policy.json", b"[]")])
    with pytest.raises(MalformedFile, match="given twice"):
        read_policy(path)


def test_encrypted_and_oddly_packed_members_are_refused(tmp_path):
    path = zipped(tmp_path / "p.zip", [("policy.json", b"{}")])
    raw = bytearray(path.read_bytes())
    directory = raw.index(b"PK\x01\x02")
    raw[directory + 8] |= 1
    path.write_bytes(raw)
    with pytest.raises(UnsafeFile, match="encrypted"):
        read_policy(path)
    path = zipped(tmp_path / "l.zip", [("policy.json", b"{}" * 100)], zipfile.ZIP_LZMA)
    with pytest.raises(UnsafeFile, match="neither stored nor deflated"):
        read_policy(path)


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x05\x06" + b"\0" * 18, b"rubbish" * 99])
def test_files_that_are_no_zip_are_malformed(tmp_path, content):
    (tmp_path / "p.zip").write_bytes(content)
    with pytest.raises(MalformedFile):
        load_policy(tmp_path / "p.zip", Env())


# --- JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 1_000_000, "nested deeper"),
        (b'{"a":' * 1_000_000 + b"1" + b"}" * 1_000_000, "nested deeper"),
        (b'{"a": 1, "b": 2, "a": 3}', "key 'a' is given twice"),
        (b'{"x": {"a": 1, "a": 1}}', "given twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b"[Infinity]", "Infinity is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b"[1e999]", "out of range"),
        (b"[" + b"9" * 10_000 + b"]", "not JSON"),
        (b'{"a": 1', "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": 1} x', "not JSON"),
        (b'["\xff"]', "not UTF-8"),
        (b"", "not JSON"),
    ],
)
def test_json_that_is_not_strict_is_malformed(content, message):
    with pytest.raises(MalformedFile, match=message):
        strict_json(content, "policy.json")


def test_json_of_allowed_depth_with_brackets_in_strings_is_read():
    text = "[" * 64 + '"' + "[{" * 500 + '\\"["' + "]" * 64
    value = strict_json(text.encode())
    for _ in range(64):
        (value,) = value
    assert value == "[{" * 500 + '"['
    assert strict_json(b'{"a": [1, 2.5, null, true, "\xc3\xa9"]}') == {
        "a": [1, 2.5, None, True, "é"]
    }


def test_json_of_seventeen_megabytes_is_refused():
    with pytest.raises(UnsafeFile, match="larger than"):
        strict_json(b" " * (17 * 2**20))


# --- safetensors ----------------------------------------------------------------------------------


def tensor_file(header, data=b"", length=None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape, start, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short"),
        (b"\xff" * 8, "header of 18446744073709551615"),
        (tensor_file({}, length=2**40), "header of"),
        (tensor_file({"a": entry([1], 0, 4)}, b"\0" * 4, length=3), "header"),
        (tensor_file(b"[]"), "not a JSON object"),
        (tensor_file(b'{"a": 1, "a": 2}'), "given twice"),
        (tensor_file(b"[" * 5000), "nested deeper"),
        (tensor_file({"a": 3}), "expected dtype"),
        (tensor_file({"a": entry([1], 0, 4, "O")}, b"\0" * 4), "type 'O'"),
        (tensor_file({"a": entry([1], 0, 4, ["F32"])}, b"\0" * 4), "type"),
        (tensor_file({"a": entry([-1], 0, 4)}, b"\0" * 4), "non-negative"),
        (tensor_file({"a": entry([1.0], 0, 4)}, b"\0" * 4), "non-negative"),
        (tensor_file({"a": entry([True], 0, 4)}, b"\0" * 4), "non-negative"),
        (tensor_file({"a": entry([2], 0, 4)}, b"\0" * 4), "needs 8 bytes, got 4"),
        (tensor_file({"a": entry([2**40, 2**40], 0, 4)}, b"\0" * 4), "needs"),
        (tensor_file({"a": entry([1], 0, 4)}), "outside the file"),
        (tensor_file({"a": entry([1], 4, 0)}, b"\0" * 4), "outside the file"),
        (
            tensor_file({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"\0" * 12),
            "overlaps another",
        ),
        (tensor_file({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, b"\0" * 4), "overlaps"),
        (tensor_file({"a": entry([1], 4, 8)}, b"\0" * 8), "leaves a gap"),
        (tensor_file({"a": entry([1], 0, 4)}, b"\0" * 8), "4 bytes behind"),
        (tensor_file({"a": entry([1], 0, 4)}, struct.pack("<f", np.nan)), "NaN"),
        (tensor_file({"a": entry([1], 0, 4)}, struct.pack("<f", np.inf)), "infinity"),
    ],
)
def test_broken_tensor_files_are_malformed(content, message):
    with pytest.raises(MalformedFile, match=message):
        read_tensors(content, "weights.safetensors")


def test_our_reader_agrees_with_the_safetensors_library():
    g = np.random.default_rng(0)
    arrays = {
        "f": g.normal(size=(3, 4)).astype(np.float32),
        "d": g.normal(size=(2, 1, 5)),
        "i": np.arange(6, dtype=np.int64),
        "scalar": np.array(3.5),
        "empty": np.zeros((0, 3), np.float32),
        "turned": g.normal(size=(4, 3)).T,
        "u": np.arange(3, dtype=np.uint64) + np.uint64(2**63),
        "b": np.array([True, False]),
    }
    content = write_tensors(arrays, "w")
    found = read_tensors(content, "w")
    assert set(found) == set(arrays)
    for key, array in arrays.items():
        assert found[key].dtype == array.dtype
        assert np.array_equal(found[key], array)
        assert found[key].shape == array.shape
        assert found[key].flags.writeable
    from safetensors.numpy import load

    for key, array in load(content).items():
        assert np.array_equal(found[key], array)


GOOD = policy_files(LinearPolicy(np.arange(6.0).reshape(2, 3), ACTIONS))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([DESCRIPTION, WEIGHTS]), st.data())
def test_no_change_of_bytes_gives_another_error_than_malformed(name, data):
    content = bytearray(GOOD[name])
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    try:
        policy = read_policy({**GOOD, name: bytes(content[:cut])})
    except (MalformedFile, UnsafeFile):
        return
    policy.predict(np.zeros((2, policy.gain.shape[1])))


# --- matrices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pkl", ".pickle", ".pt", ".pth", ".npz"])
def test_pickles_are_refused_under_every_name(tmp_path, pwned, suffix):
    path = tmp_path / f"policy{suffix}"
    if suffix == ".npz":
        np.savez(path, K=np.array([Payload(pwned)], dtype=object))
    else:
        path.write_bytes(pickle.dumps(Payload(pwned)))
    with pytest.raises(UnsafeFile, match="never loaded"):
        load_policy(path, Env())


@pytest.mark.parametrize("suffix", [".zip", ".npy", ".mat", ".csv"])
def test_pickles_under_a_false_name_are_refused(tmp_path, pwned, suffix):
    path = tmp_path / f"policy{suffix}"
    path.write_bytes(pickle.dumps(Payload(pwned)))
    with pytest.raises((MalformedFile, UnsafeFile)):
        load_policy(path, Env())


def test_objects_in_npy_files_are_refused(tmp_path, pwned):
    np.save(tmp_path / "K.npy", np.array([Payload(pwned)], dtype=object))
    with pytest.raises(UnsafeFile, match="pickled objects"):
        load_policy(tmp_path / "K.npy", Env())


def npy(header: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    "content",
    [
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000), }\n"),
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n", b"\0" * 40),
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-2, -3), }\n", b"\0" * 48),
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': __import__('os'), }\n"),
        npy(b"{'descr': '<U4', 'fortran_order': False, 'shape': (1, 1), }\n", b"\0" * 16),
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1), }\n", b"\xff" * 8),
        npy(b"(" * 60000),
        b"\x93NUMPY\x09\x00",
        b"\x93NUMPY",
        b"",
    ],
)
def test_broken_npy_files_are_malformed(tmp_path, content):
    (tmp_path / "K.npy").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(MalformedFile):
        read_matrix(tmp_path / "K.npy")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


@pytest.mark.parametrize("text", ["", "a,b", "1,2\n3", "nan,1", "1,inf", "\x00\x01", "1;2"])
@pytest.mark.filterwarnings("ignore:loadtxt")
def test_broken_csv_files_are_malformed(tmp_path, text):
    (tmp_path / "K.csv").write_text(text)
    with pytest.raises(MalformedFile):
        read_matrix(tmp_path / "K.csv")


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_mat_files_are_read_as_scipy_reads_them(tmp_path, dtype, compressed):
    from scipy.io import loadmat, savemat

    random = np.random.default_rng(0)
    content = {
        "A": random.integers(0, 100, (3, 5)).astype(dtype),
        "one": np.array([[7]], dtype),  # a small element
        "name": "text",
    }
    savemat(tmp_path / "m.mat", content, do_compression=compressed)
    ours = read_mat((tmp_path / "m.mat").read_bytes())
    theirs = loadmat(tmp_path / "m.mat")
    assert ours["name"] is None
    for name in ("A", "one"):
        assert np.array_equal(ours[name], theirs[name])
        assert ours[name].shape == content[name].shape


def test_a_mat_file_of_the_other_byte_order_is_read():
    import struct

    def element(kind, data):
        return struct.pack(">II", kind, len(data)) + data + b"\0" * (-len(data) % 8)

    body = element(6, struct.pack(">II", 6, 0)) + element(5, struct.pack(">ii", 1, 2))
    body += element(1, b"K") + element(9, struct.pack(">dd", 1.5, -2.0))
    header = b"MATLAB 5.0".ljust(124) + struct.pack(">H", 0x0100) + b"MI"
    assert read_mat(header + element(14, body))["K"].tolist() == [[1.5, -2.0]]


def test_a_mat_file_that_unpacks_without_end_is_refused(tmp_path):
    import struct
    import zlib

    bomb = zlib.compress(b"\0" * (UNPACKED + 1))
    content = b"MATLAB 5.0".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    (tmp_path / "K.mat").write_bytes(content + struct.pack("<II", 15, len(bomb)) + bomb)
    with pytest.raises(MalformedFile, match="larger than"):
        read_matrix(tmp_path / "K.mat")


def test_mat_files_with_other_things_are_malformed(tmp_path):
    from scipy.io import savemat

    for name, content in {
        "two": {"a": np.eye(2), "b": np.eye(2)},
        "text": {"K": "hello"},
        "cell": {"K": np.array([np.eye(2), np.eye(3)], dtype=object)},
        "struct": {"K": {"field": 1.0}},
        "complex": {"K": np.eye(2) * 1j},
        "nan": {"K": np.array([[np.nan]])},
        "cube": {"K": np.zeros((2, 2, 2))},
    }.items():
        savemat(tmp_path / f"{name}.mat", content)
        with pytest.raises(MalformedFile):
            read_matrix(tmp_path / f"{name}.mat")
    for content in (b"", b"x" * 300, b"MATLAB 7.3 MAT-file" + b"\0" * 105 + b"\x00\x02IM"):
        (tmp_path / "bad.mat").write_bytes(content)
        with pytest.raises(MalformedFile):
            read_matrix(tmp_path / "bad.mat")
