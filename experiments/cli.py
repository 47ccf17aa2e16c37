"""The command line: `palestra COMMAND`. Every command answers `--help`; data goes to stdout,
progress and messages to stderr.

Exit codes: 0 holds, 1 refuted or check failed, 2 usage, 3 malformed or corrupt files,
4 inconclusive, 130 (Ctrl-C) and 143 (SIGTERM, SIGUSR1) interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from .commands import app
from .commands.app import MALFORMED, REFUTED, USAGE
from .commands.terminal import one_line, print_whatever_the_encoding, say

INTERRUPTED = "interrupted; run the same command again to go on"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: of the command line; None takes those of the process.
    """
    _die_politely()
    print_whatever_the_encoding()
    given = list(sys.argv[1:] if arguments is None else arguments)
    usual, warnings.formatwarning = warnings.formatwarning, _warning_line
    try:
        code = int(app(given, prog_name="palestra", standalone_mode=False) or 0)
        if code == 130:  # what typer makes of KeyboardInterrupt
            say(INTERRUPTED)
        sys.stdout.flush()
        return code
    except (KeyboardInterrupt, _Terminated) as stop:
        say(INTERRUPTED)
        return 143 if isinstance(stop, _Terminated) else 130
    except BrokenPipeError:  # whoever read our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except BaseException as problem:  # code that a command was given may raise anything
        return _explain(problem)
    finally:
        warnings.formatwarning = usual


def _warning_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """A warning as a person wants it: what, and not where in our code."""
    return f"palestra: {one_line(str(message))}\n"


def _explain(problem: BaseException) -> int:
    """One line for a person's mistake or a broken file; a traceback for our own."""
    if isinstance(problem, SystemExit) and isinstance(problem.__context__, BrokenPipeError):
        return 141  # typer's own way to say that nobody reads on
    if isinstance(problem, SystemExit):  # no command leaves so: it would pass for a result
        leaving = RuntimeError(f"code that this command ran called sys.exit({problem.code!r})")
        leaving.__cause__, problem = problem, leaving
    if os.environ.get("PALESTRA_TRACEBACK"):
        raise problem
    shown = getattr(problem, "format_message", None)
    if shown is not None:  # a usage error of the command line itself
        context = getattr(problem, "ctx", None)
        if type(problem).__name__ == "NoArgsIsHelpError":
            print(shown(), file=sys.stderr)
        else:
            text = str(shown())
            say(text + (f" (see {context.command_path} --help)" if context else ""))
        return USAGE
    kinds = {kind.__name__ for kind in type(problem).__mro__}  # names: to import them takes time
    if kinds & {"MalformedFile", "UnsafeFile"}:
        say(str(problem))
        return MALFORMED
    if isinstance(problem, OSError) and problem.strerror:
        say(f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror)
        return USAGE
    if isinstance(problem, ValueError | TypeError | ImportError | OSError) or "RunLocked" in kinds:
        say(str(problem))
        for note in getattr(problem, "__notes__", ()):
            say(note)
        return USAGE
    if isinstance(problem, MemoryError):
        say(f"out of memory: {problem}; a smaller --width, or fewer rows, need less")
        return REFUTED
    say(f"{type(problem).__name__}: {problem}")
    for note in getattr(problem, "__notes__", ()):
        say(note)
    if not kinds & {"NotFinite", "WorkerDied", "TimeLimitExceeded"}:
        say("set PALESTRA_TRACEBACK=1 to see where")
    return REFUTED


class _Terminated(BaseException):
    """SIGTERM or SIGUSR1 arrived: leave at the next bytecode, as for Ctrl-C."""


def _die_politely() -> None:
    """Leave a run that can go on when the system, or a cluster's scheduler, asks to end."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
        raise _Terminated

    for name in ("SIGTERM", "SIGUSR1"):
        number = getattr(signal, name, None)  # Windows has no SIGUSR1
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            try:
                signal.signal(number, stop)
            except ValueError:
                return  # not in the main thread: whoever runs us decides


if __name__ == "__main__":
    raise SystemExit(main())
