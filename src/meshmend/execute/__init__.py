"""Plans that run. `local` is numpy in one process; the other executors carry the name of what they run on."""

from meshmend.execute import local as local
