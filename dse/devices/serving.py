"""A child process that answers JSON lines: the child's side."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def serve(handlers: Mapping[str, Handler], at_end: Callable[[], None] | None = None) -> None:
    """Answer requests until standard input closes.

    ``at_end`` is called before the process ends then.

    Each request is an object with the field ``command``; the handler of that name gets the request
    and returns the answer.  An exception becomes ``{"error": text}``.

    Notes
    -----
    Whatever native code prints on standard output goes to standard error, so it can not disturb
    the answers.  A thread waits for the end of input, so the process ends even in the middle of a
    long invocation when its parent is gone.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests, at_end), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        try:
            answer = handlers[request["command"]](request)
        except Exception as error:  # the parent turns it into its own error
            answer = {"error": f"{type(error).__name__}: {error}"}
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:
            # The parent is gone: the other thread cleans up and ends the process.
            threading.Event().wait()


def _read(requests: queue.SimpleQueue[str], at_end: Callable[[], None] | None) -> None:
    for line in sys.stdin:
        requests.put(line)
    try:
        if at_end is not None:
            at_end()
    finally:
        os._exit(0)
