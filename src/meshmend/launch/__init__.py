"""`meshmend run` and its company: workers and couriers on one host or several, started, watched and kept going."""

from meshmend.launch.chaos import wreak as wreak
from meshmend.launch.cluster import text_for as text_for
from meshmend.launch.doctor import findings as findings
from meshmend.launch.doctor import line as line
from meshmend.launch.doctor import verdict as verdict
from meshmend.launch.hosts import parse_hosts as parse_hosts
from meshmend.launch.order import Order as Order
from meshmend.launch.order import begun as begun
from meshmend.launch.order import load_order as load_order
from meshmend.launch.start import attach as attach
from meshmend.launch.start import launch as launch
from meshmend.launch.start import resume as resume
