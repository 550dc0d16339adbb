"""`python -m meshmend.run.agent RUN FOLDER`: an agent, started by the launcher on another host."""

import sys

from meshmend.run.agent.agent import main

main(*sys.argv[1:])
