"""``ad.compile``: trace a function or a training step once, and run it as one program.

The folders are the stages, in this order: ``program`` (the data), ``replay``, ``guards``, ``loops``,
``capture``, ``lower``, ``schedule``, ``emit``, ``build``, ``host``, ``api``.  A folder imports only folders
before it.
"""
