"""A real mesh on one machine, to run jobs in: network namespaces as chips, veth pairs as links, `tc tbf` as speed."""

from meshmend.testbed.namespaces import remove_stale as remove_stale
from meshmend.testbed.namespaces import why_not as why_not
from meshmend.testbed.network import Testbed as Testbed
from meshmend.testbed.privileges import become_root as become_root
