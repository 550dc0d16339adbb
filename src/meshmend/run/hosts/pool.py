"""The agents of all hosts: the launcher reconnects to one that is gone, and in the end counts its host as lost."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from meshmend.base.clocks import AGENT_POLL, HOST_FIRST, HOST_REJOIN, HOST_RETRY
from meshmend.base.proofs import new_secret
from meshmend.base.sockets import address_towards, common_network
from meshmend.errors import JobError
from meshmend.run.agent.agent import Agent
from meshmend.run.agent.messages import Command, Remove
from meshmend.run.clusters.hosts import Host
from meshmend.run.hosts.remote import NoAgent, Remote
from meshmend.run.probe import Probe
from meshmend.run.spec import RunSpec
from meshmend.run.supervisor.observations import ChangedHost, HostChange
from meshmend.telemetry.epoch import FIRST, Epoch


@dataclass
class PendingAgent:
    """An agent on another host that has not reported yet."""

    agent: Remote | NoAgent
    until: float


@dataclass
class Invitation:
    """A host that is new to the run, where an agent is being started."""

    host: Host
    call: PendingAgent


@dataclass
class Pool:
    """The hosts of a run."""

    spec: RunSpec
    agents: dict[str, Agent | Remote] = field(default_factory=dict)
    """The connected agents, by host."""
    lost: dict[str, float] = field(default_factory=dict)
    """Lost hosts, and when to try them again."""
    epoch: Epoch = FIRST
    """The launcher's present one, for its commands."""
    _away: set[str] = field(default_factory=set)
    """Lost hosts whose agents answered although mpirun could not reach them."""
    _calls: dict[str, PendingAgent] = field(default_factory=dict)
    """Hosts where an agent is being started."""
    _invited: dict[str, Invitation] = field(default_factory=dict)
    """Hosts that are new to the run, by name."""
    _secret: bytes = field(default_factory=new_secret, repr=False)
    """What only this launcher and its agents know."""

    def open(self, *, attached: bool = False) -> None:
        """Start the agents of all hosts; an unreachable host is an error, unless `attached`."""
        for host in self.spec.places:
            self.agents[host.name] = self._agent(host.name)
        remote = [agent for agent in self.agents.values() if isinstance(agent, Remote)]
        deadline = time.monotonic() + HOST_FIRST
        while not all(agent.ready or agent.closed for agent in remote) and time.monotonic() < deadline:
            time.sleep(AGENT_POLL)
        missing = [agent for agent in remote if not agent.ready or agent.closed]
        if missing and not attached:
            for agent in remote:
                agent.drop()
            first = missing[0]
            raise JobError(
                f"no agent could be started on host {first.host!r} with {self.spec.launch_agent!r}: {first.why()}"
            )

    def _agent(self, host: str) -> Agent | Remote:
        if any(place.here for place in self.spec.places if place.name == host):
            one = len(self.spec.places) == 1  # a host that is added changes that: see `arrivals`
            return Agent(self.spec.run, self.spec.folder, alone=one, one_host=one)
        return Remote(self.spec.run, self.spec.folder, host, self.spec.launch_agent, self._secret)

    def has(self, host: str) -> bool:
        """Whether an agent is connected now."""
        agent = self.agents.get(host)
        return agent is not None and not (isinstance(agent, Remote) and agent.closed)

    def tell(self, host: str, command: Command) -> None:
        """Send a command to one agent; if the agent is gone, the next observations show it."""
        if host in self.agents:
            self.agents[host].act(replace(command, epoch=self.epoch))

    @property
    def living(self) -> dict[str, list[int]]:
        """Workers of the run that were alive on other hosts before these agents: their processes, by host."""
        remote = [agent for agent in self.agents.values() if isinstance(agent, Remote)]
        return {agent.host: list(agent.living) for agent in remote if agent.living}

    @property
    def sure(self) -> bool:
        """Whether every host is known to be reachable or lost: none is silent, none has just lost its agent."""
        quiet = any(isinstance(agent, Remote) and agent.quiet for agent in self.agents.values())
        return not quiet and self.lost.keys() >= self._calls.keys()

    def look(self) -> list[ChangedHost]:
        """Reconnect to hosts whose agent is gone; return the hosts that have changed."""
        now = time.monotonic()
        for host, agent in self.agents.items():
            if isinstance(agent, Remote) and agent.lost and host not in self._calls:
                agent.drop()
                self._call(host, now + HOST_REJOIN)
        for host, when in self.lost.items():
            if now > when and host not in self._calls:
                self._call(host, now + HOST_REJOIN)
        return [
            changed
            for host, call in list(self._calls.items())
            if (changed := self._answered(host, call, now)) is not None
        ]

    def _call(self, host: str, until: float) -> None:
        self._calls[host] = PendingAgent(self._called(host), until)

    def _called(self, host: str) -> Remote | NoAgent:
        try:
            agent = self._agent(host)
        except (OSError, JobError) as error:  # it cannot be called now; this counts as an unanswered call
            return NoAgent(time.monotonic(), str(error))
        assert not isinstance(agent, Agent)
        return agent

    def _answered(self, host: str, call: PendingAgent, now: float) -> ChangedHost | None:
        """Return the outcome of a call, if there is one now."""
        agent, known = call.agent, host in self.lost
        there = agent.first.answer if host in self._away and agent.first is not None else host not in self._away
        if isinstance(agent, Remote) and agent.ready and not agent.closed and there:
            del self._calls[host]
            self.agents[host] = agent
            self.lost.pop(host, None)
            self._away.discard(host)
            return ChangedHost(host, HostChange.BACK if known else HostChange.AGENT_REPLACED, agent.attempt)
        if now > call.until or (there is False and agent.first is not None):
            agent.drop()
            del self._calls[host]
            self.lost[host] = now + HOST_REJOIN
            self.agents.pop(host, None)
            return None if known else ChangedHost(host, HostChange.LOST)
        if agent.closed and now - agent.called > HOST_RETRY:
            agent.drop()
            self._call(host, call.until)
        return None

    def invite(self, host: Host) -> None:
        """Start an agent on a host that is new to the run."""
        if host.name not in {*self.agents, *self.lost, *self._invited}:
            call = PendingAgent(self._called(host.name), time.monotonic() + HOST_FIRST)
            self._invited[host.name] = Invitation(host, call)

    @property
    def invited(self) -> list[Host]:
        """The hosts that were invited and have no agent yet; the thread of the door asks too."""
        return [one.host for one in list(self._invited.values())]

    def arrivals(self) -> tuple[list[Host], list[tuple[Host, str]]]:
        """Return the invited hosts that have an agent now; and those that cannot be used, each with the reason."""
        arrived, refused = [], []
        for one in list(self._invited.values()):
            host, call = one.host, one.call
            agent = call.agent
            if isinstance(agent, Remote) and agent.ready and not agent.closed:
                for other in self.agents.values():
                    if isinstance(other, Agent):
                        other.alone = other.one_host = False
                self.agents[host.name] = agent
                arrived.append(host)
            elif agent.closed or time.monotonic() > call.until:
                refused.append((host, agent.why()))
                agent.drop()
            else:
                continue
            del self._invited[host.name]
        return arrived, refused

    def dismiss(self, host: str) -> None:
        """Drop the agent of a host that cannot join after all."""
        agent = self.agents.pop(host)
        assert isinstance(agent, Remote)
        agent.close()

    def probe(self, hosts: Iterable[str]) -> list[Probe]:
        """Probe hosts on mpirun's network, except hosts that never answered a probe: a firewall may be the reason."""
        agents = [agent for host in hosts if isinstance(agent := self.agents.get(host), Remote)]
        known = [agent for agent in agents if not agent.closed and agent.first is not None and agent.first.answer]
        return [agent.probe() for agent in known]

    def network(self, hosts: Collection[str]) -> str:
        """Return the network that contains these hosts and this one; empty unless all of them were reached in it."""
        agents = [agent for host in hosts if isinstance(agent := self.agents.get(host), Remote)]
        addresses = [agent.address for agent in agents]
        return common_network([*addresses, *map(address_towards, addresses)])

    def expel(self, host: str) -> bool:
        """Kill every process of the run on a host; return whether that is certain. Later it may come back."""
        agent = self.agents.pop(host, None)
        self.lost[host] = time.monotonic() + HOST_REJOIN
        self._away.add(host)
        if not isinstance(agent, Remote):
            return False  # the agent was lost a moment ago
        agent.act(Remove(epoch=self.epoch))
        sure = not agent.closed
        agent.close()
        return sure

    def close(self) -> None:
        """Stop all agents, but not their workers."""
        for agent in self.agents.values():
            if isinstance(agent, Remote):
                agent.close()
        for call in [*self._calls.values(), *(one.call for one in self._invited.values())]:
            call.agent.drop()
