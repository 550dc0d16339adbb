"""The secrets of a run, and the sides that prove that they know them (`base/proofs.py`).

    the run's     for the launcher and its agents. Each launcher makes one and keeps it in memory. An agent gets it
                  through the launch agent's pipe, which ssh encrypts: it is never in a command line, an environment
                  or a file
    the door's    for the launcher and whoever announces a host to it (door.py), which has no pipe to it. Each
                  launcher makes one, and it is in a file that only the run's user can read, as long as that runs

A proof says which side it is from.
"""

LAUNCHER, AGENT, NEW_HOST = b"launcher", b"agent", b"new host"
