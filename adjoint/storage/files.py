"""``ad.save`` and ``ad.load``: nested state in one safetensors file, which is replaced atomically.

Arrays are stored as tensors of the file.  The structure around them, with numbers and strings, is stored as
JSON in the metadata, with a digest of the whole file.  Loading reads data and executes no code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from adjoint import words
from adjoint.core.sparse import SparseGradient, sparse_gradient
from adjoint.core.tensor import Tensor, wrap
from adjoint.errors import DTypeError, FileError, InputError, MissingExtraError
from adjoint.storage.atomic import refuse_other_than_files, replace_file

__all__ = ["load", "save"]

_KEY = "adjoint"
_ORIGIN = "written_by"
_SHA256 = "adjoint_sha256"  # digest of the whole file, computed with zeros in place of its 64 digits
_UNSEALED = "0" * 64
_STATE = '{"format": '  # the metadata value of _KEY starts with this
_FORMAT = 2
_CHANGED = "is damaged: its contents do not match its digest."
_RESERVED = "__metadata__"  # a key with this meaning in every safetensors file: no array may have this name


def save(path: str | os.PathLike[str], state: Any) -> None:
    """Write nested dictionaries, lists and tuples of arrays, tensors, numbers and strings to a file.

    The file is written to a temporary directory beside ``path``, flushed to disk and renamed.  A reader
    sees the complete old file or the complete new file, even after a crash.  A killed process leaves
    its directory ``.<name>.….tmp`` behind; the next save of the same file removes it.

    Parameters
    ----------
    path : str or os.PathLike
        The file to write.  An existing file is replaced.
    state : tree
        What to store: dictionaries, lists and tuples of arrays, tensors, numbers, strings and None.

    Raises
    ------
    InputError
        If ``state`` contains something that cannot be stored.
    FileError
        If ``path`` is a device, a pipe or a socket.
    MissingExtraError
        If safetensors is not installed.

    Examples
    --------
    >>> import adjoint as ad, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "state.safetensors"
    >>> ad.save(path, {"step": 3, "w": ad.tensor([1.0, 2.0])})
    >>> ad.load(path)
    {'step': 3, 'w': tensor([1., 2.], dtype=float64)}
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(
            f"ad.save: the path must be a str or a pathlib.Path, but got {type(path).__name__}.\n"
            "  The path comes first: ad.save(path, state)."
        )
    tensors: dict[str, Any] = {}
    try:
        content = json.dumps({"format": _FORMAT, "state": _encoded(state, "", tensors)})
        "".join(tensors).encode()  # raises if a key cannot be encoded
    except RecursionError:
        raise InputError("ad.save: the state contains itself, or is nested too deeply.") from None
    except UnicodeEncodeError as error:
        raise InputError(f"ad.save: a string of the state cannot be encoded: {error}.") from None
    metadata = {_KEY: content, _ORIGIN: _KEY, _SHA256: _UNSEALED}
    save_file = need_safetensors("ad.save").save_file

    def write(beside: str) -> None:
        save_file(tensors, beside, metadata=metadata)
        _sort_metadata(beside)
        seal(beside)

    replace_file(Path(path), write)


def _sort_metadata(path: str | os.PathLike[str]) -> None:
    """Sort the metadata of a file, so that equal states give equal files: safetensors does not sort them."""
    with open(path, "r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header[_RESERVED] = dict(sorted(header[_RESERVED].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:  # always, unless safetensors escapes a character that Python does not
            file.seek(8)
            file.write(text.ljust(size))


def seal(path: str | os.PathLike[str]) -> None:
    """Write the digest of a file into its header."""
    with open(path, "r+b") as file:
        place, _, digest = _sealed(file)
        file.seek(place)
        file.write(digest)


def _sealed(file: BinaryIO) -> tuple[int, bytes, bytes]:
    """Return the offset of the digest in an open file, this digest, and the digest of the content."""
    size = file.read(8)
    header = file.read(int.from_bytes(size, "little"))
    # quotes in metadata values are escaped, so the pattern matches only the key
    found = re.search(rf'"{_SHA256}":"([^"]{{64}})"'.encode(), header)
    if found is None:
        raise FileError(f"{file.name} {_CHANGED}")
    start, end = found.span(1)
    sha = hashlib.sha256(size + header[:start] + _UNSEALED.encode() + header[end:])
    while chunk := file.read(2**20):
        sha.update(chunk)
    return 8 + start, found[1], sha.hexdigest().encode()


def _is_pickle(path: str | os.PathLike[str]) -> bool:
    with open(path, "rb") as file:
        return file.read(2) in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def load(path: str | os.PathLike[str], *, like: Any = None) -> Any:
    """Read a file of ``ad.save``, or any safetensors file.

    A damaged file of ``ad.save`` raises an error: the digest covers every bit.  Loading executes no code.
    Arrays of bfloat16 need ml_dtypes (extra ``bfloat16``).

    Parameters
    ----------
    path : str or os.PathLike
        The file to read.
    like : tree, optional
        A state whose structure, shapes and dtypes the file must have, for example the state of a new
        model.  The error lists the differences.

    Returns
    -------
    tree
        The saved state; a dictionary of arrays if another library wrote the file.

    Raises
    ------
    FileError
        If the file is damaged, is not a safetensors file, or differs from ``like``.

    Examples
    --------
    >>> import adjoint as ad, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "state.safetensors"
    >>> ad.save(path, {"w": np.ones(2)})
    >>> ad.load(path, like={"w": np.zeros(2)})
    {'w': array([1., 1.])}
    """
    library = need_safetensors("ad.load")
    refuse_other_than_files(path, "cannot read a directory")
    try:
        with library.safe_open(os.fspath(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: _read(file, name) for name in file.keys()}  # noqa: SIM118  not a mapping
    except (FileNotFoundError, IsADirectoryError, PermissionError, MissingExtraError, DTypeError):
        raise
    except Exception as error:
        if _is_pickle(path):
            raise FileError(
                f"{os.fspath(path)} was written by torch.save or pickle. Loading it could run code, so "
                "adjoint reads only safetensors.\n  Convert it with PyTorch: safetensors.torch.save_file("
                "torch.load(path, weights_only=True), 'model.safetensors')."
            ) from None
        raise FileError(f"{os.fspath(path)} is damaged or not a safetensors file: {error}") from None
    state = _state(path, metadata, arrays) if _is_ours(metadata) else arrays
    if like is not None:
        differences = list(_differences(like, state, ""))
        if differences:
            listed = "\n  ".join(differences[:12]) + ("\n  …" if len(differences) > 12 else "")
            raise FileError(f"{path} differs from the expected state:\n  {listed}")
    return state


def _is_ours(metadata: Mapping[str, str]) -> bool:
    """Return whether ``save`` wrote the file that has this metadata.

    One key or value that only ``save`` writes is enough, because damage may have removed the others.
    """
    return any(_KEY in key or value == _KEY or value.startswith(_STATE) for key, value in metadata.items())


def _state(path: str | os.PathLike[str], metadata: Mapping[str, str], arrays: dict[str, Any]) -> Any:
    """Return the state that ``save`` wrote, from the file's metadata and arrays; raise if it is damaged."""
    try:
        content = json.loads(metadata[_KEY])
        version = content["format"]
    except Exception:
        raise FileError(f"{path} {_CHANGED}") from None
    if version != _FORMAT:
        raise FileError(f"{path} has format {version}; this version of adjoint reads format {_FORMAT}.")
    with open(path, "rb") as file:
        _, stored, computed = _sealed(file)
    if stored != computed:
        raise FileError(f"{path} {_CHANGED}")
    try:
        state = _decoded(content["state"], arrays)
    except MissingExtraError:
        raise
    except Exception as error:
        raise FileError(f"{path} is damaged: its structure does not match its arrays: {error}") from None
    if arrays:
        raise FileError(
            f"{path} is damaged: its structure does not name the arrays {', '.join(sorted(arrays)[:8])}."
        )
    return state


def _read(file: Any, name: str) -> Any:
    """Return the array ``name`` of an open safetensors file; raise for 8-bit floats, which NumPy lacks."""
    dtype = file.get_slice(name).get_dtype()
    if dtype == "BF16":
        _dtype("bfloat16")
    elif dtype.startswith(("F8_", "F6_")) or dtype == "F4":
        raise DTypeError(
            f"ad.load: {name!r} has dtype {dtype}, which NumPy does not have.\n"
            "  Convert it to float16, bfloat16 or float32 where the file is written."
        )
    return file.get_tensor(name)


def need_safetensors(what: str) -> Any:
    """Return an object with the functions of safetensors; raise if it is not installed.

    ``what`` names the caller in the error.
    """
    try:
        import safetensors
        import safetensors.numpy
    except ImportError:
        raise MissingExtraError(what, "safetensors", "files") from None

    class Library:
        save_file = staticmethod(safetensors.numpy.save_file)
        safe_open = safetensors.safe_open

    return Library


# The structure as JSON: numbers, strings, booleans and None unchanged, everything else as {"kind": …} -----


def _encoded(value: Any, where: str, tensors: dict[str, Any]) -> Any:
    """Return the JSON form of ``value``; move its arrays to ``tensors``, with their paths as keys.

    ``where`` is the path of ``value`` in the saved state, such as "model.0.weight".
    """
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if type(value) is SparseGradient:
        parts = {"rows": value.rows, "values": value.values}
        return {
            "kind": "sparse",
            "shape": list(value.shape),
            "parts": _encoded(parts, where or "state", tensors),
        }
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return _encoded_array(value, where or "state", tensors)
    if isinstance(value, complex):
        return {"kind": "complex", "real": value.real, "imag": value.imag}
    if isinstance(value, Mapping):
        items = [
            [_encoded_key(k, where), _encoded(v, f"{where}.{k}" if where else str(k), tensors)]
            for k, v in value.items()
        ]
        return {"kind": "dict", "items": items}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        items = [_encoded(v, f"{where}.{i}" if where else str(i), tensors) for i, v in enumerate(value)]
        return {"kind": kind, "items": items}
    raise InputError(
        f"ad.save: {where or 'the state'} is {words.a(type(value).__name__)}. Only arrays, numbers, "
        f"strings, lists, "
        "tuples and dictionaries can be saved."
        + ("\n  Save its state_dict()." if callable(getattr(value, "state_dict", None)) else "")
    )


def _encoded_key(key: Any, where: str) -> Any:
    if isinstance(key, str) or type(key) is int:
        return key
    raise InputError(
        f"ad.save: keys must be strings or integers, but {where or 'the state'} has the key {key!r}."
    )


def _encoded_array(value: Any, where: str, tensors: dict[str, Any]) -> dict[str, Any]:
    kind = "tensor" if isinstance(value, Tensor) else "array" if isinstance(value, np.ndarray) else "scalar"
    data = np.array(value, order="C", copy=None)
    if data.dtype.kind not in "biufc" and data.dtype.name != "bfloat16":
        raise InputError(
            f"ad.save: {where or 'the state'} has dtype {data.dtype}, but only arrays of numbers can be "
            "saved.\n  Convert it to numbers, or to a list of strings."
        )
    if data.dtype.kind not in "biuf" or data.dtype.itemsize > 8:
        stored = np.frombuffer(data.tobytes(), np.uint8)  # not every safetensors library has this dtype
    else:
        stored = data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("="))
    name = where
    while name in tensors or name == _RESERVED:  # {"a.b": …, "a": {"b": …}} has two paths "a.b"
        name += "'"
    tensors[name] = stored
    return {"kind": kind, "name": name, "shape": list(data.shape), "dtype": data.dtype.newbyteorder("=").name}


def _decoded(value: Any, arrays: dict[str, Any]) -> Any:
    """Return the state whose JSON form ``_encoded`` made: the inverse function.

    Arrays are removed from ``arrays``, and their shapes and dtypes are checked.
    """
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise FileError("a list has no key 'kind'")
        return value
    kind = value["kind"]
    if kind == "dict":
        return {k: _decoded(v, arrays) for k, v in value["items"]}
    if kind in ("list", "tuple"):
        items = [_decoded(v, arrays) for v in value["items"]]
        return items if kind == "list" else tuple(items)
    if kind == "complex":
        return complex(value["real"], value["imag"])
    if kind == "sparse":
        parts = _decoded(value["parts"], arrays)
        return sparse_gradient(parts["rows"], parts["values"], value["shape"])
    if kind not in ("tensor", "array", "scalar"):
        raise FileError(f"a value has the unknown kind {kind!r}")
    return _decoded_array(kind, value, arrays)


def _decoded_array(kind: str, value: dict[str, Any], arrays: dict[str, Any]) -> Any:
    name, shape, dtype = value["name"], tuple(value["shape"]), _dtype(value["dtype"])
    if name not in arrays:
        raise FileError(f"array {name!r} is missing")
    data = np.asarray(arrays.pop(name))
    if data.dtype != dtype:
        expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if data.dtype != np.uint8 or data.size != expected:
            raise FileError(f"array {name!r} is {data.dtype} {data.shape}, not {dtype} {shape}")
        data = np.frombuffer(data.tobytes(), dtype).reshape(shape).copy()
    if data.shape != shape:
        raise FileError(f"array {name!r} has shape {data.shape}, not {shape}")
    if kind == "tensor":
        return wrap(data)
    return data if kind == "array" else data[()]


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise MissingExtraError("loading bfloat16", "ml_dtypes", "bfloat16") from None
        return np.dtype(ml_dtypes.bfloat16)
    found = np.dtype(name)
    if found.kind not in "biufc":
        raise FileError(f"dtype {name!r} is not numeric")
    return found


def _differences(expected: Any, got: Any, where: str) -> Any:
    """Yield a line of text for each difference of two states in structure, shape or dtype.

    ``where`` is the path of ``expected`` and ``got`` in the whole state, such as "model.weight".
    """
    here = where or "the state"
    if isinstance(expected, (Tensor, np.ndarray)):
        if not isinstance(got, (Tensor, np.ndarray)):
            yield f"{here}: expected an array, but got {type(got).__name__}"
        elif got.shape != expected.shape or got.dtype != expected.dtype:
            yield f"{here}: expected {expected.dtype} {expected.shape}, but got {got.dtype} {got.shape}"
    elif isinstance(expected, Mapping):
        if not isinstance(got, Mapping):
            yield f"{here}: expected a dictionary, but got {type(got).__name__}"
            return
        for key in expected:
            if key not in got:
                yield f"{where}.{key}: missing".lstrip(".")
            else:
                yield from _differences(expected[key], got[key], f"{where}.{key}".lstrip("."))
        yield from (f"{where}.{key}: not expected".lstrip(".") for key in got if key not in expected)
    elif isinstance(expected, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(expected):
            yield f"{here}: expected {words.count(len(expected), 'item')}"
            return
        for i, (a, b) in enumerate(zip(expected, got, strict=True)):
            yield from _differences(a, b, f"{where}.{i}".lstrip("."))
