"""The file format of ``ad.save`` and ``ad.load``, and files that are replaced whole or not at all."""
