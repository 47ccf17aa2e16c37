"""Progress: a bar for a person who watches, a line now and then for a file, else nothing."""

import io

import pytest

from palestra import progress
from palestra.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_nothing_is_shown_unless_asked_for(monkeypatch, stream):
    shown = stream()
    monkeypatch.setattr("sys.stderr", shown)
    with progress_bar("training", 10, show=False) as advance:
        advance(10)
    assert shown.getvalue() == ""


def test_a_person_who_watches_sees_a_bar_on_stderr(monkeypatch, capsys):
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("training", 10) as advance:
        advance(4)
        advance(6)
    assert "training" in shown.getvalue()
    assert "100%" in shown.getvalue()
    assert capsys.readouterr().out == ""


def test_a_file_gets_a_line_every_ten_seconds(monkeypatch):
    shown = io.StringIO()
    clock = iter([0.0, 3.0, 11.0, 15.0, 22.0])
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr(progress, "time", type("Clock", (), {"monotonic": lambda: next(clock)}))
    with progress_bar("training", 8) as advance:
        for _ in range(4):
            advance(2)
    assert shown.getvalue() == "training: 50 % after 11 s\ntraining: 100 % after 22 s\n"
