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
    send({"event": "Subject", "name": subject.name, "kind": subject.kind, "ours": subject.ours})
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
