"""Crashes both agents before each of their lines once, and starts them again: python3 crash.py

Every start is a process of its own, and each line is tried in another run. A crash ends the
process without a word, as kill -9 does.
"""

import os
import sys
import traceback

import agent

CRASHED = 9


def start(run: str, role: str, line: int = 0) -> bool:
    """Runs an agent to its end, or to the line before which it crashes; True if it did."""
    child = os.fork()
    if child == 0:
        try:
            sys.settrace(crash_before(line))
            agent.main(run, role)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, CRASHED):
        sys.exit(f"{role} of {run} ended with {code}")
    return code == CRASHED


def crash_before(line: int):
    left = line

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename != agent.__file__:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os._exit(CRASHED)
        return trace

    return trace


crashes = {"clerk": 0, "closer": 0}
line = 0
while line == 0 or crashed:
    line += 1
    crashed = False
    for role in crashes:
        if start(f"run-{line}", role, line):
            crashes[role] += 1
            crashed = True
            start(f"run-{line}", role)
print(f"runs {line}, crashes of the clerk {crashes['clerk']}, of the closer {crashes['closer']}")
