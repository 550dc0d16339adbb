"""`python -m meshmend` is the command line."""

import sys

from meshmend.cli import main

sys.exit(main())
