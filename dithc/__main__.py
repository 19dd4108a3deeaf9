"""`python -m dithc <verb>`: the command line without its script."""

import sys

from dithc.cli import main

sys.exit(main())
