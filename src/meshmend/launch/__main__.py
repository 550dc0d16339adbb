"""`python -m meshmend.launch RUN FOLDER`: an agent, started by the launcher on another host."""

import sys

from meshmend.launch.agent import main

main(*sys.argv[1:])
