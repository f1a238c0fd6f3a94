"""The exceptions of adjoint, with their causes and remedies.

    AdjointError
    ├── ShapeError            (ValueError)    shapes, axes or lengths do not match
    │   └── AxisError         (IndexError)    an axis that the tensor does not have
    ├── DTypeError            (TypeError)     a dtype does not support the operation
    ├── InputError            (TypeError)     an argument of a type adjoint does not accept
    ├── ArgumentError         (ValueError)    an argument with a value adjoint does not accept
    ├── IndexingError         (IndexError)    an index outside the tensor, or of the wrong kind
    ├── LinAlgError           (np.linalg.LinAlgError)  a matrix without the property the op needs
    ├── NoGradientError       (RuntimeError)  a gradient was requested where none can flow
    │   └── MissingGradientError  (KeyError)  a gradient that a store does not have
    ├── GraphReleasedError    (RuntimeError)  backward a second time through released values
    ├── ModifiedError         (RuntimeError)  a saved value was overwritten before backward
    ├── InPlaceError          (RuntimeError)  writing into a tensor that is part of a graph
    ├── LostHistoryError      (RuntimeError)  a conversion that would drop the history of a tensor
    ├── RuleError             (RuntimeError)  a derivative rule returned something invalid
    ├── HookError             (RuntimeError)  a hook returned something invalid
    ├── TapeError             (RuntimeError)  a tape used outside its block
    ├── AnomalyError          (FloatingPointError)  NaN or inf under detect_anomaly
    ├── GradcheckError        (AssertionError)  a derivative differs from finite differences
    ├── AbsentNameError       (AttributeError)  a name of another library that adjoint does not have
    ├── AbsentImportError     (ImportError)   the same, in from adjoint import name
    ├── NotSavedError         (AttributeError)  a rule read a value its op does not save
    ├── TransformError        (TypeError)     a function cannot be transformed
    ├── SharingError          (BufferError)   memory that cannot be shared as requested
    ├── WorkerError           (RuntimeError)  a worker thread was stopped from outside
    ├── ConvergenceError      (RuntimeError)  an iteration did not converge
    ├── NonFiniteError        (FloatingPointError)  a gradient that is NaN or infinite
    ├── AccumulationError     (RuntimeError)  a method of an accumulator or scaler called out of order
    ├── RankError             (RuntimeError)  another rank of a distributed program failed
    ├── StallError            (TimeoutError)  a rank of a distributed program does not answer
    ├── DeviceError           (RuntimeError)  a program cannot run on a device, or its driver failed
    │   ├── DeviceMemoryError (MemoryError)   the memory of a device is full
    │   └── DeviceLostError                   a device cannot be used any more
    ├── UnknownNameError      (KeyError)      a name that is not registered
    ├── FileError             (ValueError)    a file with unexpected content
    ├── ExportError           (ValueError)    a function that cannot be a library without Python
    └── MissingExtraError     (ImportError)   an optional library is not installed

Every class is also a subclass of the usual built-in exception, so ``except ValueError`` works.
Messages say what happened, why, and what to do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "AbsentImportError", "AbsentNameError", "AccumulationError", "AdjointError", "AnomalyError",
    "ArgumentError", "AxisError", "ConvergenceError", "DTypeError", "DeviceError", "DeviceLostError",
    "DeviceMemoryError", "ExportError", "FileError",
    "GradcheckError", "GraphReleasedError", "HookError", "InPlaceError", "IndexingError", "InputError",
    "LinAlgError", "LostHistoryError", "MissingExtraError", "MissingGradientError", "ModifiedError",
    "NoGradientError", "NonFiniteError", "NotSavedError", "RankError", "RuleError", "ShapeError",
    "SharingError", "StallError", "TapeError", "TransformError", "UnknownNameError", "WorkerError",
]  # fmt: skip
__dir__ = sorted(__all__).copy


def install_command(extra: str) -> str:
    """Return the command that installs an extra of adjoint, for messages."""
    published = f"pip install 'adjoint-ad[{extra}]' once it is published"
    return f"pip install '.[{extra}]' in a clone of adjoint, or {published}"


class AdjointError(Exception):
    """Base class of all adjoint errors; it is never raised itself."""

    _module: tuple[Any, str]  # where it arose: the outermost module so far, and the path inside that module
    _plain: str  # the message before a module added its path


class ShapeError(AdjointError, ValueError):
    """Shapes, axes or lengths do not match.

    Cause: operands that do not broadcast, an axis out of range, a gradient whose shape differs from its
    tensor's, a ragged list.  Fix: correct the operand that the message names.
    """


class AxisError(ShapeError, IndexError):
    """An axis does not exist.  The class is an IndexError, too, like NumPy's AxisError.

    Fix: pass an axis from ``-x.ndim`` to ``x.ndim - 1``.
    """


class SharingError(AdjointError, BufferError):
    """Memory cannot be shared with another library as requested.

    Cause: ``copy=False`` for memory that could still be written to, or a device other than the cpu, in the
    DLPack protocol.  Fix: allow a copy.
    """


class DTypeError(AdjointError, TypeError):
    """A dtype does not support the operation.

    Cause: integers that should require grad, objects or strings as numbers, a gradient of a different dtype.
    Fix: ``x.astype(float)``, or a float dtype from the start.
    """


class InputError(AdjointError, TypeError):
    """An argument has a type that adjoint does not accept.

    Cause: a tensor of another library, a string, None.  Fix: convert it first, for example
    ``ad.tensor(np.asarray(value))``.
    """


class ArgumentError(AdjointError, ValueError):
    """An argument has the right type, but a value that adjoint does not accept.

    Cause: an unknown option, a number out of range.  Fix: the message lists the accepted values.
    """


class IndexingError(AdjointError, IndexError):
    """An index is out of range or has the wrong type, or there are too many indices.

    Fix: the message names the axis and its length, or the accepted types of an index.
    """


class LinAlgError(AdjointError, np.linalg.LinAlgError):
    """A matrix does not have the property that an op needs.

    Cause: a singular matrix in ``solve`` or ``inv``, a matrix that is not positive definite in
    ``cholesky``, repeated eigenvalues where a derivative needs distinct ones.  Fix: check the matrix, or
    add a small multiple of the identity.
    """


class NoGradientError(AdjointError, RuntimeError):
    """A gradient was requested, but none can flow.

    Cause: the root does not require grad; an input is not part of the graph; the only path leads through an
    op that is piecewise constant.  Fix: set ``requires_grad=True`` before the computation, or pass
    ``allow_unused=True`` if a missing gradient is intended.
    """


class MissingGradientError(NoGradientError, KeyError):
    """A gradient store does not have the requested gradient.  The class is a KeyError, too.

    Cause: the result does not depend on the tensor, or the tensor does not require grad.  Fix: check with
    ``tensor in gradients``, or use ``gradients.get(tensor)``.
    """

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError shows the repr of its message otherwise


class GraphReleasedError(AdjointError, RuntimeError):
    """Backward ran a second time through values that the first run released.

    Fix: ``retain_graph=True`` in the first backward, or run the forward again.
    """


class ModifiedError(AdjointError, RuntimeError):
    """A value that backward needs was overwritten after the forward.

    Fix: write after backward, or use ``x.clone()`` in the forward.
    """


class InPlaceError(AdjointError, RuntimeError):
    """A tensor that is part of a graph cannot be written to.

    Fix: ``y = x.at[i].set(v)``, which is differentiable; or write into the leaf under ``ad.no_grad()``; or
    write into ``x.detach().clone()``.
    """


class LostHistoryError(AdjointError, RuntimeError):
    """An implicit conversion would turn a tensor that requires grad into plain numbers.

    Cause: NumPy, SciPy or ``math`` asks for the values of a tensor, or ``ad.tensor(x)`` copies it.  The
    gradient would then miss a term.  Fix: the differentiable function (``ad.array([...])``, ``ad.stack``,
    ``ad.exp``), or ``x.detach()`` and ``x.numpy()`` if no gradient is needed.
    """


class RuleError(AdjointError, RuntimeError):
    """A derivative rule returned the wrong number, shape or type of gradients.

    Cause: a mistake in a ``define`` record or a custom derivative.  Fix: the message names the op and the
    expected result; ``adjoint.testing.gradcheck`` checks the values.
    """


class HookError(AdjointError, RuntimeError):
    """A hook returned something other than None or a gradient of the same shape and dtype.

    Fix: return None to keep the gradient, or a tensor with its shape and dtype to replace it.
    """


class TapeError(AdjointError, RuntimeError):
    """A tape was used after its block, entered twice, or did not record the tensor.

    Fix: compute the tensor inside ``with ad.Tape() as tape:``, with a new tape for each block;
    ``ad.Tape(persistent=True)`` returns gradients more than once.
    """


class AnomalyError(AdjointError, FloatingPointError):
    """A NaN or an infinity appeared under ``detect_anomaly``.

    The message names the op, its inputs (shape, dtype, finite fraction) and the line that recorded it.  Fix:
    change the values that this op gets, for example by a smaller learning rate or a larger eps.
    """


class GradcheckError(AdjointError, AssertionError):
    """A derivative differs from finite differences; the message shows the worst element.

    Fix: correct the derivative rule, or test at a point where the function is smooth.
    """


class AbsentNameError(AdjointError, AttributeError):
    """A name of NumPy, PyTorch or JAX that adjoint does not have.

    Fix: use the name in the message.
    """


class AbsentImportError(AdjointError, ImportError):
    """A name of NumPy, PyTorch or JAX that adjoint does not have, in ``from adjoint import name``.

    Fix: use the name in the message.
    """


class NotSavedError(AdjointError, AttributeError):
    """A rule read the values of an argument that its op does not save.

    Fix: name the argument in ``saves=``.  Its shape and dtype are available without that.
    """


class TransformError(AdjointError, TypeError):
    """A function cannot be transformed.

    Cause: an argument or result of the wrong type or structure, or an operation that the transform does not
    support.  Fix: the message names the argument, result or operation, and an alternative.
    """


class WorkerError(AdjointError, RuntimeError):
    """A worker thread was stopped from outside while it was working, or is missing in a forked process.

    No gradient has changed.  Fix: run the forward and backward, or the loop over the data, again.
    """


class ConvergenceError(AdjointError, RuntimeError):
    """An iteration did not converge within its limits; the message has the last residual.

    Fix: start closer to the solution, allow more steps, or use a larger tolerance.
    """


class NonFiniteError(AdjointError, FloatingPointError):
    """A gradient is NaN or infinite, and cannot be accumulated or clipped.

    Fix: ``ad.detect_anomaly()`` finds the op that made it; ``nonfinite="skip"`` leaves such micro-batches
    out; ``ad.GradScaler`` handles the overflows of float16.
    """


class AccumulationError(AdjointError, RuntimeError):
    """A method of an accumulator or a ``GradScaler`` was called out of order.

    Cause: more micro-batches than an update has, or an update before all of its micro-batches.  Fix: call
    ``apply`` or ``reset`` when ``should_update()`` is true.  ``flush()`` allows an update with fewer
    micro-batches, and ``drop()`` discards them.
    """


class RankError(AdjointError, RuntimeError):
    """Another rank of a distributed program failed or exited.  The message has its traceback.

    Fix: fix the error of that rank, and restart the program from a checkpoint.
    """


class StallError(AdjointError, TimeoutError):
    """A rank of a distributed program did not make a call that the other ranks wait for.

    Cause: ranks that make different calls, or a rank that hangs.  Fix: the message of each rank names the
    call in which it waits; ``timeout=`` of ``distributed.world`` sets how long ranks wait.
    """


class DeviceError(AdjointError, RuntimeError):
    """A program cannot run on a device, or the driver of the device failed.  Nothing has been changed.

    Fix: the message names the op or the dtype; move it out of the compiled function, or compile for the CPU.
    """


class DeviceMemoryError(DeviceError, MemoryError):
    """The memory of a device is full.  The call has changed nothing.

    Fix: use smaller batches or a device with more memory.
    """


class DeviceLostError(DeviceError):
    """A device cannot be used any more: its driver has stopped, or the process was forked.

    Fix: load the last checkpoint in a new process.  Values that were not read are lost.
    """


class UnknownNameError(AdjointError, KeyError):
    """A name is not registered, or a key is missing.

    Fix: the message lists the known names.
    """

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError shows the repr of its message otherwise


class FileError(AdjointError, ValueError):
    """A file is damaged, has the wrong format, or does not have the expected names, shapes and dtypes.

    Fix: check the path, and that the file was saved from the same model or objects.
    """


class ExportError(AdjointError, ValueError):
    """A function cannot be exported, a linker fails, or an exported library returns an error.

    Cause: parts that run in Python, such as calls of NumPy; wrong sizes; a state of another program.
    Fix: the message names the ops and lines, or what is wrong with the arguments.
    """


class MissingExtraError(AdjointError, ImportError):
    """An optional library is not installed.

    Fix: install the extra, as the message says.

    Parameters
    ----------
    what : str
        The feature that needs the library.
    library : str
        The name of the library.
    extra : str
        The extra of adjoint that installs it.
    """

    def __init__(self, what: str, library: str, extra: str) -> None:
        super().__init__(f"{what} needs {library}.  Install it with: {install_command(extra)}.")
