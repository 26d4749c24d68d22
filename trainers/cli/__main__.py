"""``python -m turncredit.trainers.cli``, which is the command ``turncredit``."""

import sys

from .app import main

if __name__ == "__main__":
    sys.exit(main())
