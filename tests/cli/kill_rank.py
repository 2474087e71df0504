#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright the Conclave authors
"""In: an mpirun command line that runs for a minute. Kills one of its ranks in the middle of the run. Out: status 0 if
the others ended within ten seconds and the output names the rank."""
import os
import re
import signal
import subprocess
import sys
import time

LIMIT = 10.0  # Seconds from the kill to the end of the last rank.


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return [int(child) for child in f.read().split()]


def stat(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        return f.read().rsplit(")", 1)[1].split()


def cpu_seconds(pid):
    return sum(map(int, stat(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def runs(pid):
    try:
        return stat(pid)[0] not in "ZX"
    except OSError:
        return False


def in_the_middle(pid, ranks):
    """The ranks, once each has computed for a while."""
    for _ in range(600):
        time.sleep(0.1)
        running = children(pid)
        if len(running) >= ranks and all(cpu_seconds(child) > 1 for child in running):
            return running
    sys.exit(f"the {ranks} ranks did not start to compute within a minute")


def main():
    ranks, command = int(sys.argv[1]), sys.argv[2:]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        try:
            running = in_the_middle(run.pid, ranks)
            os.kill(running[-1], signal.SIGKILL)
            killed = time.monotonic()
            output = run.communicate(timeout=4 * LIMIT)[0]
        except subprocess.TimeoutExpired:
            run.kill()
            sys.exit(f"the other ranks still ran {4 * LIMIT} s after the kill")
    while any(map(runs, running)) and time.monotonic() < killed + LIMIT:
        time.sleep(0.1)
    seconds = time.monotonic() - killed
    print(output)
    print(f"ended {seconds:.1f} s after the kill, status {run.returncode}")
    if run.returncode == 0 or seconds > LIMIT or not re.search(r"rank \d", output):
        sys.exit(f"expected an error that names the rank, and no rank left after {LIMIT} s")


main()
