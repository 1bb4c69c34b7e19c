"""CIFAR batches, in the binary form and in the pickled one, which is read without ever unpickling it."""

import math
import pickletools
from typing import Any

import numpy as np

from nsm.data.errors import DataError

_PIXELS = 3 * 32 * 32


def read_cifar(
    data: bytes, *, classes: int = 10, label_bytes: int = 1, name: str = "file"
) -> tuple[np.ndarray, np.ndarray]:
    """Read a binary CIFAR batch: images (N, 3, 32, 32) and labels (N,), both uint8.

    Args:
        data: Records of ``label_bytes`` labels and 3072 pixels.
        classes: How many classes the last label of a record may name.
        label_bytes: 1 for CIFAR-10, 2 (coarse, fine) for CIFAR-100, whose fine label is returned.
        name: What to call the file in an error message.

    Raises:
        DataError: Not a whole number of records, or a label out of range.

    Example:
        >>> images, labels = read_cifar(bytes([7]) + bytes(3072))
        >>> images.shape, labels.tolist()
        ((1, 3, 32, 32), [7])
    """
    record = label_bytes + _PIXELS
    if len(data) % record or not data:
        raise DataError(f"Expected {name} to be records of {record} bytes, but got {len(data)} bytes")
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    return _checked(rows[:, label_bytes:], rows[:, label_bytes - 1], classes, name)


def read_cifar_pickle(data: bytes, *, classes: int = 10, name: str = "file") -> tuple[np.ndarray, np.ndarray]:
    """Read a python CIFAR batch like `read_cifar`, without running what the pickle asks to be run.

    Args:
        data: A pickled dict with an array ``data`` (N, 3072) and a list ``labels`` or ``fine_labels``.
        classes: How many classes a label may name.
        name: What to call the file in an error message.

    Raises:
        DataError: Anything but dicts, lists, numbers, text and uint8 arrays, or contents of another kind.

    Example:
        >>> import pickle
        >>> batch = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [3, 9]}
        >>> read_cifar_pickle(pickle.dumps(batch, protocol=4))[1].tolist()
        [3, 9]
    """
    try:
        batch = _interpret(data)
        batch = {(key.encode("latin-1") if isinstance(key, str) else key): value for key, value in batch.items()}
        images, labels = batch[b"data"], batch[b"fine_labels" if b"fine_labels" in batch else b"labels"]
        labels = np.array([int(label) if 0 <= label < classes else 255 for label in labels], np.uint8)
        images = images.reshape(-1, _PIXELS)
    except DataError as error:
        raise DataError(f"Expected {name} to be a pickled CIFAR batch, but got {error}") from None
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(f"Expected {name} to be a pickled CIFAR batch, but got {type(error).__name__}") from None
    if len(images) != len(labels):
        raise DataError(f"Expected {name} to have {len(images)} labels, but got {len(labels)}")
    return _checked(images, labels, classes, name)


def _checked(images: np.ndarray, labels: np.ndarray, classes: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    if len(labels) and labels.max() >= classes:
        where = int(np.argmax(labels >= classes))
        raise DataError(f"Expected labels of {name} in 0 to {classes - 1}, but got another at record {where}")
    return np.ascontiguousarray(images).reshape(-1, 3, 32, 32), labels.copy()


class _Dtype:
    """A pickled dtype. Only unsigned bytes exist here, so it has nothing to say."""


class _Array:
    """A pickled array before its state has come; afterwards ``value`` holds it."""

    value: np.ndarray | None = None

    def build(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        raw = raw.encode("latin-1") if isinstance(raw, str) else raw  # Python 2 wrote bytes as text
        if not isinstance(raw, (bytes, bytearray)) or not isinstance(dtype, _Dtype):
            raise DataError("an array that does not hold bytes")
        if not all(type(side) is int and 0 <= side < 2**32 for side in shape) or len(raw) != math.prod(shape):
            raise DataError(f"an array whose {len(raw)} bytes do not fill its shape")
        self.value = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


_GLOBALS = {  # the only names a batch may mention; nothing of this is looked up or called
    "numpy dtype": "dtype",
    "numpy ndarray": "ndarray",
    "numpy.core.multiarray _reconstruct": "reconstruct",
    "numpy._core.multiarray _reconstruct": "reconstruct",
    "numpy._core.numeric _frombuffer": "frombuffer",
    "numpy.core.numeric _frombuffer": "frombuffer",
}
_LITERALS = {
    *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4"),
    *("SHORT_BINSTRING", "BINSTRING", "STRING", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BYTEARRAY8"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


def _interpret(data: bytes) -> Any:
    """Run the few instructions a batch needs on a stack of our own: no import, no call, no hidden size."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}
    arrays = 0  # one is all a batch has; more could share bytes and grow without end

    def pop_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    def pairs(items: list[Any]) -> Any:
        # Only text: to hash a tuple that is a million deep would end the process.
        if not all(isinstance(key, (str, bytes)) for key in items[::2]):
            raise DataError("a key that is not text")
        return zip(items[::2], items[1::2], strict=True)

    for opcode, argument, _ in pickletools.genops(data):
        code = opcode.name
        if code in ("PROTO", "FRAME"):
            continue
        if code in _LITERALS:
            stack.append(argument)
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code == "MARK":
            marks.append(len(stack))
        elif code in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[code]())
        elif code in ("TUPLE1", "TUPLE2", "TUPLE3"):
            size = int(code[-1])
            stack[-size:] = [tuple(stack[-size:])]
        elif code in ("TUPLE", "LIST"):
            stack.append((tuple if code == "TUPLE" else list)(pop_mark()))
        elif code == "DICT":
            stack.append(dict(pairs(pop_mark())))
        elif code in ("APPEND", "APPENDS"):
            items = [stack.pop()] if code == "APPEND" else pop_mark()
            target: Any = stack[-1]
            target.extend(items)
        elif code in ("SETITEM", "SETITEMS"):
            items = [stack.pop(-2), stack.pop()] if code == "SETITEM" else pop_mark()
            target = stack[-1]
            target.update(pairs(items))
        elif code in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif code == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif code in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif code in ("GLOBAL", "STACK_GLOBAL"):
            name = str(argument) if code == "GLOBAL" else " ".join([stack.pop(-2), stack.pop()])
            if name not in _GLOBALS:
                raise DataError(f"a reference to {name[:60]!r}")
            stack.append(_GLOBALS[name])
        elif code == "REDUCE":
            arguments = stack.pop()
            stack.append(_construct(stack.pop(), arguments))
            arrays += isinstance(stack[-1], _Array)
            if arrays > 1:
                raise DataError("a second array")
        elif code == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], _Array) and stack[-1].value is None:
                stack[-1].build(state)
            elif not isinstance(stack[-1], _Dtype):
                raise DataError("a state for what has none")
        elif code == "STOP":
            break
        else:
            raise DataError(f"the instruction {code}")
    batch = stack.pop()
    return {key: value.value if isinstance(value, _Array) else value for key, value in batch.items()}


def _construct(function: Any, arguments: tuple[Any, ...]) -> Any:
    """What the three constructors of an array would give, made here."""
    if function == "dtype":
        if arguments[0] not in ("u1", "|u1"):
            raise DataError("an array of other numbers than bytes")
        return _Dtype()
    if function == "reconstruct" and arguments[0] == "ndarray":
        return _Array()
    if function == "frombuffer":  # protocol 5: the bytes come first, the order last
        raw, dtype, shape, order = arguments
        array = _Array()
        array.build((1, shape, dtype, order == "F", raw))
        return array
    raise DataError("a call of what may not be called")
