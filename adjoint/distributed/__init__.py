"""Data parallelism over processes and machines: groups of ranks on MPI.

``world()`` returns the group of all ranks that ``mpiexec`` started, or a group of one.  ``simulate``
runs ranks as threads.
"""

from adjoint.distributed.group import Group
from adjoint.distributed.mpi import world
from adjoint.distributed.order import share
from adjoint.distributed.simulate import simulate
from adjoint.errors import RankError, StallError
from adjoint.hints import add_hints as _add_hints

__all__ = ["Group", "RankError", "StallError", "share", "simulate", "world"]
__dir__ = sorted(__all__).copy


_add_hints(__name__)
