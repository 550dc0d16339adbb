"""What a plan costs, what a training step costs, and what weeks of failures cost: network, step, fleet."""

from meshmend.simulator.network.network import NETWORKS as NETWORKS
from meshmend.simulator.network.network import Flight as Flight
from meshmend.simulator.network.network import Network as Network
from meshmend.simulator.network.network import network_for as network_for
from meshmend.simulator.network.network import simulate as simulate
