"""Philox against published vectors and an implementation of its own; the streams made of it."""

import hashlib
import math
import random
import secrets

import numpy as np
import pytest
from scipy import stats

from palestra.streams import (
    PURPOSES,
    SEED_DRAW,
    Streams,
    check_seed,
    normal,
    philox,
    stream_key,
    uniform,
)

# Known answers of philox4x32-10: the file kat_vectors of Random123 (Salmon, Moraes, Dror, Shaw,
# "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Counter words, key words, answer.
KNOWN_ANSWERS = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def words(key: int, episode: int, step: int, draw: int) -> tuple[int, ...]:
    """Our Philox, called with the types that the core passes."""
    answer = philox(np.uint64(key), np.uint64(episode), np.uint32(step), np.uint32(draw))
    return tuple(int(word) for word in answer)


def philox_with_python_integers(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """The definition of the paper (its section 3.3), by Python's unbounded integers."""
    c, (k0, k1) = list(counter), key
    for number in range(10):
        if number > 0:
            k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
        high_0, low_0 = divmod(0xD2511F53 * c[0], 2**32)
        high_1, low_1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high_1 ^ c[1] ^ k0, low_1, high_0 ^ c[3] ^ k1, low_0]
    return tuple(c)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_known_answers(counter, key, answer):
    c0, c1, c2, c3 = counter
    assert words(key[0] | key[1] << 32, c0 | c1 << 32, c2, c3) == answer
    assert philox_with_python_integers(counter, key) == answer


def test_philox_equals_an_independent_implementation_on_10_000_random_inputs():
    source = random.Random(7)
    for _ in range(10_000):
        key, episode = source.getrandbits(64), source.getrandbits(64)
        step, draw = source.getrandbits(32), source.getrandbits(32)
        counter = (episode % 2**32, episode >> 32, step, draw)
        expected = philox_with_python_integers(counter, (key % 2**32, key >> 32))
        assert words(key, episode, step, draw) == expected


def draws(function, count: int) -> np.ndarray:
    """Numbers over keys, episodes, steps and draws alike."""
    key = np.uint64(stream_key("Test", 3, "dynamics"))
    side = round(count ** (1 / 3))
    return np.array(
        [
            function(key, np.uint64(episode), np.uint32(step), draw)
            for episode in range(side)
            for step in range(side)
            for draw in range(side)
        ]
    )


def test_uniform_is_the_top_53_bits_of_two_words():
    source = random.Random(8)
    for _ in range(1000):
        key, episode = source.getrandbits(64), source.getrandbits(64)
        first, second, _, _ = words(key, episode, 5, 6)
        expected = ((first << 21) ^ (second >> 11)) / 2**53
        assert uniform(np.uint64(key), np.uint64(episode), np.uint32(5), 6) == expected


def test_uniform_is_uniform_on_the_unit_interval():
    u = draws(uniform, 64_000)
    assert u.min() >= 0.0
    assert u.max() < 1.0
    assert abs(u.mean() - 1 / 2) < 4 * np.sqrt(1 / 12 / u.size)
    assert abs(u.var() - 1 / 12) < 4 * np.sqrt(1 / 180 / u.size)
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / np.sqrt(u.size)


def test_normal_is_standard_normal():
    z = draws(normal, 64_000)
    assert np.isfinite(z).all()
    assert abs(z.mean()) < 4 / np.sqrt(z.size)
    assert abs(z.var() - 1.0) < 4 * np.sqrt(2 / z.size)
    assert abs(stats.skew(z)) < 4 * np.sqrt(6 / z.size)
    assert abs(stats.kurtosis(z)) < 4 * np.sqrt(24 / z.size)
    assert stats.kstest(z, "norm").pvalue > 1e-3


def test_normal_is_box_and_muller_of_one_block():
    """sqrt(-2 ln u) cos(2 pi v): Box and Muller, Annals of Mathematical Statistics 29 (1958)."""
    source = random.Random(9)
    for _ in range(1000):
        key, episode = source.getrandbits(64), source.getrandbits(64)
        a, b, c, d = words(key, episode, 5, 6)
        u, v = (((a << 21) ^ (b >> 11)) + 0.5) / 2**53, ((c << 21) ^ (d >> 11)) / 2**53
        expected = math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v)
        got = normal(np.uint64(key), np.uint64(episode), np.uint32(5), 6)
        assert got == pytest.approx(expected, rel=1e-13, abs=1e-15)


def test_stream_key_is_the_documented_digest():
    for name, seed, purpose in [("NMRRelax", 0, "dynamics"), ("Flock", 2**64 - 1, "policy")]:
        digest = hashlib.blake2b(f"{name}|{seed}|{purpose}".encode()).digest()
        assert stream_key(name, seed, purpose) == int.from_bytes(digest[:8], "little")


def test_stream_keys_are_what_they_were_in_the_first_release():
    # A change here changes every episode that was ever recorded.
    assert stream_key("Counter", 0, "dynamics") == FIRST_RELEASE[0]
    assert stream_key("Counter", 1, "observation") == FIRST_RELEASE[1]


FIRST_RELEASE = (
    int.from_bytes(bytes.fromhex("c121403f10adae99"), "little"),
    int.from_bytes(bytes.fromhex("572d18a34fe1ebb0"), "little"),
)


def test_keys_differ_by_name_seed_and_purpose():
    keys = {stream_key(n, s, p) for n in ("A", "B") for s in range(50) for p in PURPOSES}
    assert len(keys) == 2 * 50 * len(PURPOSES)


def streams_of(seeds: list[int], name: str = "Test") -> Streams:
    streams = Streams(name, len(seeds))
    streams.set_seeds(seeds)
    return streams


def test_rows_carry_the_keys_of_their_seeds():
    streams = streams_of([4, 9, 4])
    for purpose in ("dynamics", "observation", "policy"):
        expected = [stream_key("Test", seed, purpose) for seed in (4, 9, 4)]
        assert getattr(streams, purpose).tolist() == expected
    streams.set_seeds([1, 2, 3], np.array([False, True, False]))
    assert streams.seed.tolist() == [4, 2, 4]
    assert streams.dynamics[1] == stream_key("Test", 2, "dynamics")


def test_a_generator_depends_on_seed_episode_step_and_purpose_only():
    streams = streams_of([4, 9, 4])
    streams.episode[:] = 5, 5, 5
    first = streams.generator(0).random(4)
    assert (streams.generator(0).random(4) == first).all()
    assert (streams.generator(2).random(4) == first).all()
    assert (streams.generator(1).random(4) != first).all()
    for purpose in ("observation", "policy", "planning"):
        assert (streams.generator(0, purpose).random(4) != first).all()
    streams.step[0] = 1
    assert (streams.generator(0).random(4) != first).all()
    streams.step[0], streams.episode[0] = 0, 6
    assert (streams.generator(0).random(4) != first).all()
    with pytest.raises(ValueError, match="purpose: got 'luck', allowed dynamics, observation"):
        streams.generator(0, "luck")


def test_generators_of_neighbouring_steps_and_episodes_do_not_overlap():
    streams = streams_of([4])
    seen = []
    for episode in range(5):
        for step in range(5):
            streams.episode[0], streams.step[0] = episode, step
            seen.append(streams.generator(0).integers(0, 2**63, 500))
    assert len(np.unique(np.concatenate(seen))) == 25 * 500


def test_the_seed_of_a_foreign_environment_is_a_word_of_its_own():
    streams = streams_of([4, 4])
    streams.episode[:] = 0, 1
    streams.step[:] = 7  # does not enter
    key = stream_key("Test", 4, "dynamics")
    assert streams.seed32(0) == words(key, 0, 0, SEED_DRAW)[0]
    assert streams.seed32(1) == words(key, 1, 0, SEED_DRAW)[0]
    assert type(streams.seed32(0)) is int


def test_a_seed_is_an_integer_of_64_bits():
    assert check_seed(np.int32(5)) == 5
    assert type(check_seed(np.int32(5))) is int
    assert check_seed(2**64 - 1) == 2**64 - 1
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match=f"seed: got {wrong}, allowed"):
            check_seed(wrong)
    for wrong in (1.0, "1", True, None, [1]):
        with pytest.raises(TypeError, match="expected an integer"):
            check_seed(wrong)


def test_streams_leave_global_random_state_alone():
    random.seed(secrets.randbits(32))
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    streams = streams_of([1, 2])
    streams.generator(0).random(10)
    streams.seed32(1)
    uniform(streams.dynamics[0], np.uint64(0), np.uint32(0), 0)
    assert random.getstate() == python
    after = np.random.get_state()  # noqa: NPY002
    assert after[0] == numpy[0]
    assert (after[1] == numpy[1]).all()
    assert after[2:] == numpy[2:]
