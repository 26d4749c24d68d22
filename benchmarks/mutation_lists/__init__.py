"""Lists of mutations by area: ``FOLDER`` of the package, ``TESTS`` to run, and ``MUTATIONS`` (see `mutations.py`)."""
