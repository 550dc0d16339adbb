"""What a plan costs, what a training step costs, and what weeks of failures cost: network, step, fleet."""

from meshmend.simulate.network import NETWORKS as NETWORKS
from meshmend.simulate.network import Flight as Flight
from meshmend.simulate.network import Network as Network
from meshmend.simulate.network import network as network
from meshmend.simulate.network import simulate as simulate
