"""NumPy's and SciPy's public functions, each called with a recorded tensor in the place of each array.

``outcomes`` says what happened at each place.  A function has a place where it works on plain arrays
by one of the templates of arguments; what it gives there is the yardstick.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import adjoint as ad
from adjoint import errors

_V = np.array([0.31, 0.52, 0.74, 0.87])
_W = np.array([0.2, 0.4, 0.65, 0.9])
_M = np.array([[2.0, 0.3, 0.1], [0.3, 1.5, 0.2], [0.1, 0.2, 1.1]])
_B = np.array([0.5, 0.25, 0.75])
_I = np.array([2, 0, 1, 3])

# Arguments that functions take, the usual ones first.  A float array is a place for a tensor.
TEMPLATES: list[tuple[Any, ...]] = [
    (_V,), (_M,), (_V, _W), (_M, _B), (_M, _M), (_V, _I), (_V, 2), (_M, 1), (2, _V), (2.5, _V), (0.5, _V),
    (_V, _W, _V), (_V, 0.3, 0.8), (_V, _V, 2), ([_V, _W],), ([_M, _M],), (_I, _V), (_V > 0.5, _V), (_V > 0.5, _V, _W),
    (1.5, 2.5, _V), (0.5, 0.5, 0.5, _V), (2, 0.5, _V), (_V, _V[:, None]), (_M[None],), (_V, (2, 2)), (_V, 1, 2), (_M, 0, 1),
    (3, _V[:3]), ([_V > 0.6, _V > 0.4], [_V, _W]), (_V, [_V > 0.5], [np.sin]), (np.sin, 0, _M), (np.add.reduce, 0, _M),
    ("ij,j", _M, _B), ((4,), _V[0]), (0.25, _V, _V), (_V, _W, 2.0), (_V, np.array([0, 2])), (_V, 0, _W[0]), (np.sort(_V), _W), (_V, 3, _W),
]  # fmt: skip

# Functions that read, write or make something else than numbers from numbers.
LEFT_OUT = frozenset(
    """
    save savez savez_compressed savetxt load loadtxt genfromtxt fromfile fromregex fromstring frombuffer memmap
    lookfor source info show_config show_runtime test get_include set_printoptions get_printoptions printoptions
    seterr geterr seterrcall geterrcall errstate setbufsize getbufsize einsum_path from_dlpack nditer nested_iters
    ndenumerate ndindex broadcast busday_count busday_offset is_busday busdaycalendar isnat datetime_as_string
    datetime_data frompyfunc vectorize asmatrix bmat matrix require shares_memory may_share_memory finfo iinfo typename
    mintypecode dtype format_float_positional format_float_scientific base_repr binary_repr array2string array_repr
    array_str apply_over_axes fromiter fromfunction poly1d generic_lookup set_workers get_workers set_backend
    set_global_backend register_backend skip_backend
    """.split()
)

MODULES = [
    "numpy", "numpy.linalg", "numpy.fft", "numpy.lib.scimath", "numpy.polynomial.polynomial", "scipy.special", "scipy.linalg",
    "scipy.fft", "scipy.signal", "scipy.ndimage", "scipy.integrate", "scipy.interpolate", "scipy.stats",
    "scipy.spatial.distance", "scipy.cluster.vq",
]  # fmt: skip


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the names and functions; classes are left out."""
    seen = set()
    for module_name in MODULES:
        module = __import__(module_name, fromlist=["_"])
        for name in sorted(getattr(module, "__all__", None) or dir(module)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                f = getattr(module, name, None)
            if name.startswith("_") or name in LEFT_OUT or not callable(f) or id(f) in seen:
                continue
            if inspect.isclass(f) or not (
                inspect.isroutine(f) or isinstance(f, np.ufunc) or hasattr(f, "__wrapped__")
            ):
                continue
            seen.add(id(f))
            yield f"{module_name}.{name}", f


def numbers(value: Any, depth: int = 0) -> list[Any]:
    """Return the float and complex arrays, scalars and tensors of a result, in order; also those in objects."""
    if isinstance(value, dict):
        value = list(value.values())
    elif (
        type(value).__module__.partition(".")[0] in ("numpy", "scipy")
        and hasattr(value, "__dict__")
        and depth < 3
    ):
        inside = numbers(list(vars(value).values()), depth + 1)
        items = list(value) if isinstance(value, tuple) else []
        return [n for n in inside if np.isfinite(n).all()] + numbers(items, depth + 1)
    if isinstance(value, (tuple, list)):
        return [n for v in value for n in numbers(v, depth + 1)]
    if isinstance(value, ad.Tensor):
        return [value] if value.dtype.kind in "fc" else []
    if isinstance(value, (float, complex, np.generic, np.ndarray)):
        return [np.asarray(value)] if np.asarray(value).dtype.kind in "fc" else []
    return []


def _total(parts: list[Any]) -> Any:
    """Reduce results to one real number, each element with a weight of its own."""
    total: Any = 0.0
    for i, part in enumerate(parts):
        weights = np.cos(np.arange(np.prod(part.shape, dtype=int)) + i).reshape(part.shape)
        if isinstance(part, ad.Tensor):
            real = ad.real(part) + 0.5 * ad.imag(part) if part.dtype.kind == "c" else part
            total = total + (real * weights).sum()
        else:
            total = total + float(((part.real + 0.5 * part.imag) * weights).sum())
    return total


def _places(template: tuple[Any, ...]) -> Iterator[tuple[int, int | None]]:
    for i, a in enumerate(template):
        if (isinstance(a, np.ndarray) and a.dtype.kind == "f") or isinstance(a, (float, np.floating)):
            yield i, None
        elif isinstance(a, list):
            for k, item in enumerate(a):
                if isinstance(item, np.ndarray) and item.dtype.kind == "f":
                    yield i, k


def _with(template: tuple[Any, ...], place: tuple[int, int | None], value: Any) -> tuple[Any, ...]:
    i, k = place
    args = copy.deepcopy(list(template))  # some functions write into their arguments
    if k is None:
        args[i] = value
    else:
        args[i] = [value if j == k else item for j, item in enumerate(args[i])]
    return tuple(args)


def _at(template: tuple[Any, ...], place: tuple[int, int | None]) -> Any:
    i, k = place
    return np.array(template[i] if k is None else template[i][k])


def _derivative(f: Callable[..., Any], template: Any, place: Any, direction: Any) -> tuple[float, float]:
    """Return the derivative along a direction by central differences of two widths."""
    x = _at(template, place)

    def at(h: float) -> Any:
        moved = x + h * direction
        return _total(numbers(f(*_with(template, place, moved if x.ndim else float(moved)))))

    return tuple((at(h) - at(-h)) / (2 * h) for h in (1e-5, 1e-4))  # type: ignore[return-value]


def is_ours(error: BaseException | None) -> bool:
    """Tell whether an error is adjoint's, or NumPy's for one of adjoint's."""
    while error is not None:
        if isinstance(error, errors.AdjointError):
            return True
        error = error.__cause__ or error.__context__
    return False


def outcome(f: Callable[..., Any], template: Any, place: Any, smooth: bool = False) -> str | None:
    """Call ``f`` with a recorded tensor at a place; return "right", "refused", "constant", or what went wrong.

    None: the place is not one for numbers, or with ``smooth`` the function has a corner there.
    """
    x = ad.tensor(_at(template, place), requires_grad=True)
    direction = np.sin(np.arange(x.size) + 1.0).reshape(x.shape)
    if x.ndim > 1 and x.shape[-1] == x.shape[-2]:  # decompositions read one triangle of a symmetric matrix
        direction = direction + direction.mT
    try:
        slopes = _derivative(f, template, place, direction)
        if smooth and (not np.isfinite(slopes).all() or _is_corner(f, template, place, direction)):
            return None
    except Exception:
        return None
    try:
        result = f(*_with(template, place, x * 1.0))
    except Exception as error:
        return "refused" if is_ours(error) else f"raised {type(error).__name__}: {error}"
    parts = numbers(result)
    total = _total(parts)
    if not isinstance(total, ad.Tensor) or not total.requires_grad:
        flat = max(map(abs, slopes)) < 1e-6
        return "constant" if flat else f"lost: the derivative is {slopes[0]:.6g}"
    try:
        (gradient,) = ad.gradients(total, [x])
    except errors.AdjointError:
        return "refused"
    found = float((gradient.detach() * direction).sum())
    spread = abs(slopes[0] - slopes[1])
    if abs(found - slopes[0]) <= 1e-4 * max(1.0, abs(found)) + 10 * spread:
        return "right"
    return f"wrong: {found:.6g}, by differences {slopes[0]:.6g}"


def _is_corner(f: Callable[..., Any], template: Any, place: Any, direction: Any) -> bool:
    """Tell whether the function has other slopes to both sides, or jumps."""
    x, h = _at(template, place), 1e-5

    def at(h: float) -> Any:
        moved = x + h * direction
        return _total(numbers(f(*_with(template, place, moved if x.ndim else float(moved)))))

    here = at(0.0)
    right, left = (at(h) - here) / h, (here - at(-h)) / h
    return not abs(right) < 1e6 or not abs(right - left) <= 1e-2 * max(1.0, abs(right))


def specials(template: Any, place: tuple[int, int | None]) -> Iterator[Any]:
    """Yield the template with special numbers at a place: zeros, ones, whole numbers, equal ones, other signs."""
    x = _at(template, place)
    ends = [x.copy() for _ in range(2)]
    if x.ndim:
        ends[0].flat[0] = ends[1].flat[-1] = 0.0
    zeros, line = np.zeros_like(x), np.arange(x.size, dtype=float).reshape(x.shape)
    for value in (
        *ends[: 2 * bool(x.ndim)],
        zeros,
        zeros + 1,
        line,
        line.T - 1,
        np.full_like(x, x.flat[0]),
        -x,
    ):
        yield _with(template, place, value if x.ndim else float(value))


def special_outcomes(every_template: bool = False) -> dict[str, str]:
    """Return what happens where an argument has special numbers: libraries branch on them, and so lose gradients.

    Places that are refused are left out.
    """
    found: dict[str, str] = {}
    done = {"scipy.ndimage.distance_transform_cdt"}  # crashes for some templates
    for number, (name, f, template) in enumerate(accepted(done)):
        if not every_template:
            done.add(name)
        for place in _places(template):
            for k, special in enumerate(specials(template, place)):
                try:
                    f(*_with(special, place, ad.tensor(_at(special, place), requires_grad=True) * 1.0))
                except Exception:  # most places: to find that out first takes less time
                    continue
                result = outcome(f, special, place, smooth=True)
                if result is not None:
                    found[f"{name}#{place[0]}: {number}.{place[1]}.{k}"] = result
    return found


def outcomes() -> dict[str, str]:
    """Return what happens at each place of each function, by the first template that it takes."""
    found: dict[str, str] = {}
    done: set[str] = set()
    for name, f, template in accepted(done):
        results = {place: outcome(f, template, place) for place in _places(template)}
        for (i, k), result in results.items():
            if result is not None:
                found[f"{name}#{i}" + ("" if k is None else f".{k}")] = result
                done.add(name)
    return found


def accepted(done: set[str]) -> Iterator[tuple[str, Callable[..., Any], Any]]:
    """Yield the functions with the templates that they take; no more of a function that is in ``done``."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name, f in functions():
            for template in TEMPLATES:
                if name in done:
                    break
                try:
                    plain = f(*copy.deepcopy(template))
                except Exception:
                    continue
                if plain is NotImplemented or inspect.isgenerator(plain):
                    continue
                if not all(np.isfinite(n).all() for n in numbers(plain)):
                    continue
                yield name, f, template


def counts(found: dict[str, str]) -> Counter[str]:
    """Count functions by what happens in their first place."""
    names = {key.partition("#")[0] for key in found}
    kinds = Counter(value.partition(" ")[0].rstrip(":") for value in found.values())
    kinds["functions"] = len(names)
    return kinds


if __name__ == "__main__":
    every = outcomes()
    for key, value in every.items():
        if value not in ("right", "refused", "constant"):
            print(key, value)
    print(dict(counts(every)))
