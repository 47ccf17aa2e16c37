"""`python -m palestra.checks.worker PART WATCH LIMIT`: one part of a check, in this process.

Reads the target as JSON from stdin, writes events as lines of JSON to what stdout was; what the
environment prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

from .finding import Event, to_record
from .program import fresh_part, main_part
from .subject import find
from .watch import Watch

_PLAYS = """
for number, last in enumerate(play(build(), 0, @CALLS@)):
    print(number, last)
"""
_PLAYS_TWICE = """
if len(sys.argv) == 1:  # play in two processes with other seeds of Python's hashes
    seen = set()
    for seed in ("1", "2"):
        command = [sys.executable, __file__, "play"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        seen.add(done.stdout)
    assert len(seen) == 1, "\\n".join(seen)
else:
    *_, last = play(build(), 0, @CALLS@)
    print({name: part for name, part in last.items() if name != "info"})
"""


def main(part: str, watch: str, limit: str) -> None:
    """Run a part ("main" or "fresh")."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")  # what the environment has to say is said by the stock checkers

    def send(record: object) -> None:
        out.write(json.dumps(record) + "\n")
        out.flush()

    watching = Watch(Path(watch), float(limit))
    watching.enter(0, 0)
    try:
        subject = find(request["target"], request["settings"], watching)
    except Exception as problem:
        send({"event": "Refused", "kind": type(problem).__name__, "message": str(problem)})
        return
    watching.leave()
    send(
        {
            "event": "Subject",
            "name": subject.name,
            "kind": subject.kind,
            "ours": subject.ours,
            "plays": subject.script(_PLAYS),
            "plays_twice": subject.script(_PLAYS_TWICE),
        }
    )
    events = main_part(subject) if part == "main" else fresh_part(subject)
    event: Event
    for event in events:
        send(to_record(event))
    send({"event": "Done"})
    out.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # threads and windows that an environment left behind end with us
