"""Videos: what is written plays, whatever becomes of the process that wrote it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from palestra.video import Video, VideoFailed

SCRIPT = """
import numpy as np, os, sys, time
from palestra.video import Video

video = Video(sys.argv[1], 20)
for k in range(30):
    video.add(np.full((48, 64, 3), 8 * k, np.uint8))
"""


def decoded(path) -> list[np.ndarray]:
    """The frames of a video, by ffmpeg."""
    reader = imageio_ffmpeg.read_frames(str(path))
    width, height = next(reader)["source_size"]
    return [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]


def moving(count, shape=(60, 80)):
    """A red square that moves to the right on white."""
    for k in range(count):
        frame = np.full((*shape, 3), 255, np.uint8)
        frame[10:30, k : k + 20] = (200, 30, 30)
        yield frame


@pytest.mark.parametrize("suffix", [".mp4", ".gif", ".MP4"])
def test_frames_come_back_in_number_size_and_colour(tmp_path, suffix):
    path = tmp_path / f"film{suffix}"
    with Video(path, 20) as video:
        for frame in moving(25):
            video.add(frame)
        assert not path.exists()  # it appears at once, complete
    assert video.frames == 25
    assert list(tmp_path.iterdir()) == [path]
    for expected, frame in zip(moving(25), decoded(path), strict=True):
        assert frame.shape == (60, 80, 3)
        assert np.abs(frame.astype(int) - expected).mean() < 6


def test_odd_sizes_grow_by_a_copy_of_their_edge(tmp_path):
    with Video(tmp_path / "film.mp4", 20) as video:
        for _ in range(5):
            video.add(np.full((61, 81, 3), (20, 160, 90), np.uint8))
    (first, *_) = decoded(tmp_path / "film.mp4")
    assert first.shape == (62, 82, 3)
    assert np.abs(first.astype(int) - (20, 160, 90)).max() <= 4


def facts_of(path) -> str:
    """What ffmpeg says of a file."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-i", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_an_mp4_is_what_every_player_takes(tmp_path):
    with Video(tmp_path / "film.mp4", 15) as video:
        for frame in moving(30):
            video.add(frame)
    facts = facts_of(tmp_path / "film.mp4")
    assert "Duration: 00:00:02.00" in facts
    assert re.search(r"h264 \(High\).*yuv420p\(tv, bt709", facts)
    content = (tmp_path / "film.mp4").read_bytes()
    assert content.index(b"moov") < content.index(b"mdat")  # begins before all of it has come
    assert b"moof" not in content  # whole: some editors do not take fragments


@pytest.mark.parametrize("fps", [0.5, 60, 125])
@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_every_pace_is_kept(tmp_path, fps, suffix):
    """MuJoCo's environments ask for up to 125 frames a second; a GIF can show 50."""
    with Video(tmp_path / f"film{suffix}", fps) as video:
        for frame in moving(int(2 * fps), shape=(60, 320)):
            video.add(frame)
    seconds = float(re.search(r"Duration: 00:00:(\d+\.\d+)", facts_of(video.path))[1])
    assert seconds == pytest.approx(2, abs=0.05)
    if suffix == ".mp4":
        assert len(decoded(video.path)) == int(2 * fps)
    else:
        with Image.open(video.path) as picture:  # ffmpeg would give some frames several times
            assert picture.n_frames == int(2 * min(fps, 50))


def test_a_percent_sign_in_a_name_is_a_percent_sign(tmp_path):
    (tmp_path / "50%d").mkdir()
    for name in ("a%03d.gif", "a%03d.mp4"):
        with Video(tmp_path / "50%d" / name, 10) as video:
            video.add(next(moving(1)))
    assert sorted(p.name for p in (tmp_path / "50%d").iterdir()) == ["a%03d.gif", "a%03d.mp4"]


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_pictures_are_scaled_to_a_width(tmp_path, suffix):
    with Video(tmp_path / f"film{suffix}", 20, width=40) as video:
        for frame in moving(5):
            video.add(frame)
    (first, *_) = decoded(tmp_path / f"film{suffix}")
    assert first.shape == (30, 40, 3)
    assert first[10, 4, 0] > 150 > first[10, 4, 1]  # the square is where it was


def test_a_file_of_the_name_is_replaced_when_the_new_one_is_whole(tmp_path):
    path = tmp_path / "film.mp4"
    path.write_bytes(b"old")
    with Video(path, 20) as video:
        video.add(next(moving(1)))
        assert path.read_bytes() == b"old"
    assert len(decoded(path)) == 1


def test_a_video_without_frames_leaves_no_file(tmp_path):
    with Video(tmp_path / "film.mp4", 20):
        pass
    assert not list(tmp_path.iterdir())


def test_closing_twice_is_closing(tmp_path):
    video = Video(tmp_path / "film.mp4", 20)
    video.add(next(moving(1)))
    video.close()
    video.close()
    assert len(decoded(tmp_path / "film.mp4")) == 1


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "1 / 0", "del video; import gc"])
def test_a_video_that_nobody_closed_plays_after_the_process_has_ended(tmp_path, suffix, end):
    path = tmp_path / f"film{suffix}"
    subprocess.run([sys.executable, "-c", SCRIPT + end, path], check=False, capture_output=True)
    assert list(tmp_path.iterdir()) == [path]
    assert len(decoded(path)) == 30


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL on Windows")
@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
@pytest.mark.parametrize("both", [False, True], ids=["without ffmpeg", "with ffmpeg"])
def test_what_a_killed_process_leaves_plays(tmp_path, suffix, both):
    script = SCRIPT.replace("range(30)", "range(250)").replace("8 * k", "k")
    script += "print(video._stream.process.pid, flush=True)\ntime.sleep(60)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path / f"film{suffix}"], stdout=subprocess.PIPE
    )
    ffmpeg = int(process.stdout.readline())
    if both:
        time.sleep(0.3)
        os.kill(ffmpeg, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    least = 100 if both else 250  # up to the last fragment, of a second each
    until = time.monotonic() + 20
    while True:  # ffmpeg ends by itself, when it sees that nobody writes any more
        (left,) = tmp_path.iterdir()
        if left.stat().st_size and len(frames := decoded(left)) >= least:
            break
        assert time.monotonic() < until
        time.sleep(0.1)
    assert left.name.startswith(".film-")
    for k, frame in enumerate(frames):
        assert np.abs(frame.astype(int) - k).max() <= 4


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (np.zeros((4, 4, 3)), "float64"),
        (np.zeros((4, 4), np.uint8), r"\(4, 4\)"),
        (np.zeros((4, 4, 4), np.uint8), "uint8"),
        (np.zeros((0, 4, 3), np.uint8), "pixels"),
        (np.zeros((8, 4, 3), np.uint8), r"the first one had \(60, 80, 3\)"),
    ],
)
def test_what_is_no_frame_is_refused_and_the_video_goes_on(tmp_path, frame, said):
    with Video(tmp_path / "film.mp4", 20) as video:
        video.add(next(moving(1)))
        with pytest.raises(ValueError, match=said):
            video.add(frame)
        video.add(next(moving(1)))
    assert len(decoded(tmp_path / "film.mp4")) == 2


def test_bad_arguments_are_refused(tmp_path, monkeypatch):
    for fps in (0, -1, 1001, float("nan")):
        with pytest.raises(ValueError, match="fps: got"):
            Video(tmp_path / "film.mp4", fps)
    with pytest.raises(ValueError, match=r"suffix must be one of \.mp4, \.gif"):
        Video(tmp_path / "film.avi", 20)
    with pytest.raises(ValueError, match="width: got 3, allowed 16"):
        Video(tmp_path / "film.mp4", 20, width=3)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        Video(tmp_path / "nowhere" / "film.mp4", 20)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match=r"pip install 'palestra\[video\]'"):
        Video(tmp_path / "film.mp4", 20)


def test_when_ffmpeg_ends_its_reason_is_said(tmp_path):
    video = Video(tmp_path / "film.mp4", 20)
    video.add(next(moving(1)))
    video._stream.process.kill()
    video._stream.process.wait()
    with pytest.raises(VideoFailed, match=r"film\.mp4: ffmpeg ended with signal SIGKILL"):
        video.add(next(moving(1)))
    video.close()  # has been said
    assert not (tmp_path / "film.mp4").exists()
    with pytest.raises(ValueError, match="is closed"):
        video.add(next(moving(1)))


def put_fake_ffmpeg(monkeypatch, folder, script):
    program = folder / "ffmpeg"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
def test_everything_that_ffmpeg_says_is_shown_once(tmp_path, monkeypatch):
    said = "echo no space >&2; echo no space >&2; echo end >&2; exit 228"
    put_fake_ffmpeg(monkeypatch, tmp_path, f"head -c 100000 >/dev/null; {said}")

    def shoot():
        video = Video(tmp_path / "film.mp4", 20)
        for frame in moving(50):
            video.add(frame)

    with pytest.raises(VideoFailed, match=r"ffmpeg ended with exit code 228: no space; end$"):
        shoot()
    put_fake_ffmpeg(monkeypatch, tmp_path, "cat >/dev/null; echo late >&2; exit 1")
    video = Video(tmp_path / "film.mp4", 20)
    video.add(next(moving(1)))
    with pytest.raises(VideoFailed, match="exit code 1: late"):
        video.close()
    assert [p.name for p in tmp_path.iterdir()] == ["ffmpeg"]


FULL = """
import resource, sys
import numpy as np
from palestra.video import Video

noise = np.random.default_rng(0)
with Video(sys.argv[1], 10) as video:
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    for k in range(100):
        video.add(noise.integers(0, 255, (200, 200, 3), np.uint8))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_where_no_more_fits_there_is_an_error_and_no_file(tmp_path, suffix):
    path = tmp_path / f"film{suffix}"
    done = subprocess.run(
        [sys.executable, "-c", FULL, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"VideoFailed: {path}: ffmpeg ended with" in done.stderr
    assert not path.exists()


def test_an_error_elsewhere_is_not_hidden_and_what_was_seen_is_kept(tmp_path):
    def shoot():
        with Video(tmp_path / "film.mp4", 20) as video:
            video.add(next(moving(1)))
            raise KeyError("elsewhere")

    with pytest.raises(KeyError, match="elsewhere"):
        shoot()
    assert len(decoded(tmp_path / "film.mp4")) == 1


MEMORY = """
import json, numpy as np, palestra
from pathlib import Path
from palestra.film import Film

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

from palestra.video import Video
film = Film("CartPole-v1", "random", episodes=200)
ends, seen = [], []
with Video("film.mp4", 30) as video:
    for frame in film.frames(lambda done: seen.append(resident())):
        video.add(frame)
print(json.dumps([len(seen), seen[19], seen[-1], video.frames]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_two_hundred_episodes(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    episodes, early, late, frames = json.loads(done.stdout.splitlines()[-1])
    assert episodes == 200
    assert late - early < 50  # MiB
    assert len(decoded(tmp_path / "film.mp4")) == frames
