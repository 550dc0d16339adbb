"""Every time constant of `base/`, `job/` and `run/` on one page, in seconds, with their dependencies.

    a worker dies ── EXIT_POLL ──► its courier kills itself ──► MPI tells the other couriers (ULFM, 10 to 20 ms)
                  └─ AGENT_POLL ─► its agent sees it ─► the supervisor acts on it; at most EXIT_WAIT if it is exiting
    a courier dies ─ SETTLE ─► it died alone, so its worker is killed; otherwise mpirun is gone: a new world
    a courier or mpirun is stopped ─ 2 x COURIER_LOOK ─► a new world
    a repair hangs ─ REPAIR ─► a new world         couriers never come up ─ WORLD_START ─► another world
    a host is silent ─ HOST_QUIET ─► nothing is decided about it ─ HOST_SILENCE ─► a new agent is sent for
                     ─ HOST_REJOIN ─► the host is lost; it is tried again every HOST_REJOIN
    a host is cut off ─ KEEPALIVE_AFTER, then KEEPALIVE_PROBES x KEEPALIVE_EVERY ─► mpirun ends: a new world

A user never has to set any of these. No constant detects hangs, but a worker's own pace (run/agent/pulse.py).
"""

from __future__ import annotations

# ── polling intervals: who polls, and what for ──
EXIT_POLL = 0.016
"""A courier polls its group and its worker while that computes: each poll takes processor time from the worker."""
EXIT_REST = 0.1
"""The same in long steps: an eighth of the time that the step takes already, at most this."""
PEER_POLL = 0.001
"""A courier polls for members that are late for a collective."""
WORLD_POLL = 0.002
"""A courier polls until its world may begin."""
AGENT_POLL = 0.02
"""How often an agent or the launcher polls all processes; the exit of one wakes them immediately."""
AGENT_REST = 0.15
"""The same while all workers make progress at a pace much slower than this. Below HANG_LAPSE."""
OWNER_POLL = 0.5
"""A worker checks that its agent is alive, and looks for questions of its courier whose doorbell it missed."""
COURIER_LOOK = 0.25
"""An agent checks whether couriers are stopped."""
MEMORY_LOOK = 1.0
"""An agent checks whether the run's shared memory was removed."""
STATE_POLL = 0.01
"""A courier polls a worker that exports its state."""
ROWS_POLL = 0.002
"""A worker polls for rows of embedding tables that another one is about to update."""
ROWS_LOOK = 0.5
"""How long such a worker waits for bytes from another host before it makes its progress known. Below ROWS_ANSWER."""
SLICES_POLL = 0.02
"""A worker polls for slices that others write."""
ROOM_POLL = 0.5
"""How often a process that has something to write checks a disk or a memory that was full."""
LOCK_POLL = 0.001
"""A process polls the lock of a run whose folder another one is removing. Far below EXIT_WAIT, its deadline."""
CACHE_POLL = 0.0002
"""A worker polls the lock of its host's cache of samples, which is held for microseconds."""
ANSWER_POLL = 0.001
"""The launcher polls an agent on another host that carries out a command. Far below HOST_SILENCE, its deadline."""
ACCEPT_RETRY = 0.01
"""Between two attempts to accept a connection where none is possible: there may be too many open files."""
SOCKETS_POLL = 0.05
"""The launcher polls for the sockets of a new mpirun. Far below SOCKETS_OPEN, its deadline."""
DEVICE_POLL = 0.005
"""A worker polls another one whose device memory it maps."""
SPIN = 0.003
"""How long a process spins before it sleeps between polls: a courier whose neighbours have all come to a sum, and a
process that sums on devices, where a host has cores to spare; its processor has nothing else to do then."""
DEVICE_LOOK = 0.05
"""How long a worker waits for one answer before it checks again whether the other one is alive. Below DEVICE_WAIT."""
ROOM_SAID = 2.0
"""How long a worker must have been unable to write before the launcher says so. Above ROOM_POLL."""
UNWRITABLE = 60.0
"""How long a worker tries to write its ledger after an error that does not pass by itself (a limit, a lost right)."""

# ── deaths ──
EXIT_WAIT = 2.0
"""How long the kernel may take to free an exiting worker's memory before others stop waiting for its status."""
HEAD_START = 1.0
"""How long the survivors may take for the interrupted step before a replacement is started: loading a framework takes
processor time from that step."""
WARM_PAUSE = 3.0
"""How long all workers must have trained before a process is started that waits to replace one, and between two such
starts: loading takes processor time from them."""
STACK_WAIT = 0.1
"""How long a hung worker has to write its stack before it is killed; it takes a few milliseconds."""
AGENT_ALERT = 5.0
"""How long an agent keeps polling often after the end of a worker, because something may follow from it."""
DIGEST_WAIT = 2.0
"""How long a courier whose state differs waits for the digests that another one writes down, to name the leaves."""
DEVICE_WAIT = 5.0
"""How long a living worker may take to hand out its device memory: its threads wait for each other."""
SETTLE = 0.1
"""After this it is clear whether one courier died or all: mpirun kills its couriers one by one. Above AGENT_POLL."""

# ── hangs: a worker is judged by its own pace (run/agent/pulse.py); these only bound that ──
HANG_PATIENCE = 1.5
"""A multiple of its longest pause, not seconds: once on the clock, then once more in its own time. If it is stopped, a
multiple of its usual pause."""
HANG_FLOOR = {"stopped": 0.1, "running": 0.5, "waiting": 5.0}
"""Least own time, by what the worker does: a stopped process does not continue by itself, a read may be slow."""
HANG_OUTSIDE = 60.0
"""Least own time outside a lane, where the first evaluation looks like an endless loop."""
HANG_LAPSE = 0.2
"""The most that counts between two looks. Above AGENT_REST: a longer gap was the watch's own (a suspended machine)."""
HANG_FIRST = 2.0
"""After this, a worker without a pace is checked: it may compile for long, but not while stopped."""

# ── worlds ──
REPAIR = 5.0
"""How long one operation of a repair may take; it takes milliseconds, also on a busy machine."""
WORLD_START = 60.0
"""How long the couriers of a world may take to come up: when daemons cannot reach each other, they never do."""
COURIER_START = 120
"""A courier whose MPI does not come up for this long ends: mpirun is gone. Above WORLD_START."""
WORLD_BACKOFF = 10.0
"""The longest pause between two attempts to form a world."""
START_BACKOFF = 10.0
"""The longest pause between two attempts to start a worker where its host has no room for one."""
SOCKETS_OPEN = 2.0
"""How long a new process of mpirun may take to open the sockets that it listens on."""
NETWORK_START = 10.0
"""How long the child that makes a run's own network may take; it takes 20 ms."""
COURIER_EXIT = 5.0
"""How long killed couriers may take to disappear."""

# ── hosts: each is longer than the one before ──
BEAT = 1.0
"""Between two messages of an agent on another host, at most; and of the launcher to it."""
HOST_QUIET = 2.5
"""Without a message for this long, nothing is decided about a host until it speaks again or is lost."""
HOST_SILENCE = 10.0
"""Without a message for this long, another agent is sent for."""
HOST_REJOIN = 10.0
"""How long a host whose agent is gone is called for, and between two attempts to reach a lost host."""
HOST_RETRY = 1.0
"""Between two calls of one host."""
HOST_FIRST = 60.0
"""Until the agents of all hosts must have spoken when a run begins: a first import over NFS is slow."""
AGENT_ALONE = 30
"""Without a message from the launcher for this long, an agent on another host ends, even if it is stopped; its workers
wait for the next."""
PROBE_SILENCE = 5.0
"""Until a host that does not answer a probe counts as unreachable: on busy links, packets wait."""
PROBE_REROUTE = 1.0
"""Until a host that no router knows counts as unreachable: routers may be looking for another way."""
KEEPALIVE_AFTER = 5
"""Silence of a daemon on another host after which mpirun probes it: a host that is cut off sends nothing."""
KEEPALIVE_EVERY = 2
"""Between two such probes."""
KEEPALIVE_PROBES = 3
"""A count, not seconds: without an answer to so many, mpirun ends. That is after 11 s, about HOST_SILENCE; the kernel
would wait for minutes or forever."""
ROWS_ANSWER = 5.0
"""How long a worker on another host may take to answer with rows of embedding tables before a buddy is asked."""
ROWS_SILENCE = 30.0
"""How long a worker asks for rows where the hosts of all living holders are silent. Above HOST_SILENCE and HOST_REJOIN
together: by then a host that is cut off is lost, or back."""
SCHEDULER_ANSWER = 60.0
"""How long a scheduler may take to name the hosts of an allocation."""

# ── stopping ──
HALT = 60.0
"""How long workers may take to stop; a worker that is writing a checkpoint by then may finish it."""
JOB_GRACE = 120
"""Between a scheduler's signal and the end of its job, in the jobs that meshmend prints. Above HALT."""
RELEASE = 10.0
"""How long a worker that is no longer needed may take to leave when the last step is done; then it is killed."""
HALT_SLICES = 20.0
"""How long workers of a sharded job that must stop continue first, to save the same step. Below HALT and HALT_ALONE."""
SLICES_WAIT = 10.0
"""How long one that writes the last checkpoint waits for another slice of the others."""
COPIES_ROOM = 5.0
"""How long a worker that can write no copies of its slices waits for memory, times its rank and one: each that ends
makes room for the others."""
HALT_LEDGER = 10.0
"""How long a process that has to stop tries to write its last events; then it stops without them. A full disk is waited
for."""
HALT_ROOM = 40.0
"""The same for the last checkpoint. Above HALT_LEDGER, below HALT."""
HALT_ALONE = 30.0
"""How long a worker without a launcher may take until it writes its checkpoint."""
ORPHAN = 600.0
"""How long a worker waits for a launcher to attach to a run whose launcher was killed."""
TOGETHER = 2.0
"""SIGTERM that comes again within this time is the same one: a scheduler signals all processes, and the batch script
passes its own on."""
ALONE = 15.0
"""How long a worker that got SIGTERM waits to hear that the run is halted; if it is not, the signal was meant for this
worker alone. Above HOST_SILENCE: the launcher may just be waiting for an agent."""
HEARTBEAT = 2.0
"""Between two beats of a launcher in the folder of its run."""
HEARTBEAT_STOPPED = 10.0
"""How long a launcher on another host that wants to take over the run watches for a heartbeat of the old one."""
READER = 5.0
"""How long the launcher, when it ends, waits for a reader of its output that takes nothing."""
STANDSTILL = 1800.0
"""How long all workers may make no progress: a slow resource and a deadlock look alike."""

# ── what people and the processor see ──
PROGRESS_LINE = 1.0
"""Between two lines about a job's steps, unless `--log-every` says otherwise."""
PROGRESS_BAR = 1.0
"""Between two states of a worker's progress bar."""
REDRAW = 0.1
"""Between two drawings of a command's progress on a terminal."""
CHECKPOINT_PAUSE = 30.0
"""Between two automatic checkpoints, at least."""
IDLE_COUNT = 0.1
"""After this, the kernel's count of idle time is meaningful: it counts in hundredths."""

# ── failures on purpose, and the doctor ──
SLOW_STOP = 0.04
"""How long a worker that is slow on purpose is stopped at a time. Below HANG_FLOOR: it must not count as a hang."""
CHAOS_SETTLE = 10.0
"""How long `meshmend chaos` waits until the run has detected a worker with a wrong state, or has another launcher."""
KILL_TEST = 60
"""How long the doctor's kill test may take: more than a busy machine needs, so one that takes longer has hung."""
KILL_TEST_DELAY = 0.1
"""Sums are undisturbed for this long before the kill. Far below KILL_TEST."""
KILL_TEST_POLL = 0.01
"""The doctor polls for the results of the survivors."""
KILL_TEST_EXIT = 1.0
"""How long mpirun may take to exit after the kill test; then it is killed."""
DOCTOR_CHILD = 60.0
"""How long another program may take to answer the doctor: JAX can search for accelerators for a long time."""
