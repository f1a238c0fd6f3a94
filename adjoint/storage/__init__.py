"""The file format of ``ad.save`` and ``ad.load``, and atomic replacement of files."""
