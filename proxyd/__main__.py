"""Lets ``python -m proxyd`` work like the ``proxyd`` command."""

import sys

from proxyd.cli import main

sys.exit(main())
