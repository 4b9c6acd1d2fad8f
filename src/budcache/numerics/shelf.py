"""A shelf: tensors that wait their turn, in main memory as far as a bound goes, beyond it in a temporary file.

The full runs of long videos and the states of a search do not fit into main memory. What was used longest ago goes to
disk, and is read again when it is wanted, one tensor at a time. The numbers are the same to the last bit.
"""

from __future__ import annotations

import math
import tempfile
import weakref
from collections import OrderedDict
from itertools import count
from typing import IO, Any

import torch
from torch import Tensor

from budcache.errors import FileError

__all__ = ["Kept", "Shelf", "part_of"]

MARK = "_budcache_kept"  # an attribute of tensors that lie on a shelf already, so that they are not put there twice


class Kept:
    """A tensor on a shelf; dropping this object takes it off.

    Attributes:
        home: the device that the tensor came from.
        size: its bytes.
    """

    __slots__ = ("__weakref__", "_key", "_shelf", "dtype", "home", "shape", "size")

    def __init__(self, shelf: Shelf, key: int, tensor: Tensor) -> None:
        self._shelf, self._key = shelf, key
        self.shape, self.dtype, self.home = tensor.shape, tensor.dtype, tensor.device
        self.size = tensor.element_size() * tensor.nelement()

    def get(self) -> Tensor:
        """The tensor, in main memory."""
        return _marked(self._shelf._read(self), self)

    def back(self) -> Tensor:
        """The tensor on the device that it came from, known to lie here: kept again, it takes no more room."""
        return _marked(self._shelf._read(self).to(self.home), self)

    def part(self, begin: int, end: int) -> Tensor:
        """Some numbers of each sample, of shape [N, end - begin]; no more than that is read."""
        return self._shelf._read_part(self, begin, end)

    def __repr__(self) -> str:
        return f"<Kept {tuple(self.shape)} {self.dtype}>"


class Shelf:
    """Holds tensors within a bound of main memory, and writes the others to disk.

    Args:
        bound: bytes of main memory. The file has no name: it is gone with the process, however that ends. It lies where
            temporary files do; the environment variable TMPDIR names another place.

    Attributes:
        size: bytes in main memory.
        written: bytes on disk.
    """

    def __init__(self, bound: float = math.inf) -> None:
        self.bound, self.size, self.written = bound, 0, 0
        self._here: OrderedDict[int, Tensor] = OrderedDict()  # used longest ago first
        self._places: dict[int, tuple[int, int]] = {}  # where in the file, and how many bytes
        self._free: dict[int, list[int]] = {}  # places to use again, by size
        self._end = 0
        self._file: IO[bytes] | None = None
        self._keys = count()

    def __enter__(self) -> Shelf:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of everything; what is on the shelf cannot be read any more."""
        self._here.clear()
        self._places.clear()
        self.size = self.written = 0
        if self._file is not None:
            self._file.close()
            self._file = None

    def keep(self, tensor: Tensor) -> Kept:
        """Put a tensor there; one that lies there already is the same thing again."""
        known = getattr(tensor, MARK, None)
        if isinstance(known, Kept) and known._shelf is self:
            return known
        key = next(self._keys)
        kept = Kept(self, key, tensor)
        here = tensor.detach().cpu()  # another object than the one that is marked, or the two would hold each other
        if here.untyped_storage().nbytes() > kept.size:
            here = here.clone()  # a part of something larger would keep all of that
        self._here[key] = here
        self.size += kept.size
        weakref.finalize(kept, self._forget, key, kept.size).atexit = False
        _marked(tensor, kept)
        self._make_room()
        return kept

    def _make_room(self) -> None:
        while self.size > self.bound and self._here:
            key, tensor = self._here.popitem(last=False)
            self._write(key, tensor)
            self.size -= tensor.element_size() * tensor.nelement()

    def _forget(self, key: int, size: int) -> None:
        if self._here.pop(key, None) is not None:
            self.size -= size
        if (place := self._places.pop(key, None)) is not None:
            self._free.setdefault(place[1], []).append(place[0])
            self.written -= place[1]

    def _write(self, key: int, tensor: Tensor) -> None:
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        free = self._free.get(data.nbytes)
        place = free.pop() if free else self._end
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="budcache-", buffering=0)  # noqa: SIM115 `close` closes it
            self._file.seek(place)
            rest = data.data
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise FileError(
                f"states that do not fit into main memory cannot be written to {tempfile.gettempdir()}: "
                f"{error.strerror or error}. Make room there, set TMPDIR to another place, or allow more with "
                "state_memory."
            ) from None
        self._end = max(self._end, place + data.nbytes)
        self._places[key] = place, data.nbytes
        self.written += data.nbytes

    def _read(self, kept: Kept) -> Tensor:
        if kept._key in self._here:
            self._here.move_to_end(kept._key)
            return self._here[kept._key].detach()
        return self._taken(kept, 0, kept.size).reshape(kept.shape)

    def _read_part(self, kept: Kept, begin: int, end: int) -> Tensor:
        if kept._key in self._here:
            return self._here[kept._key].flatten(1)[:, begin:end]
        samples = kept.shape[0]
        row, number = kept.size // samples, kept.dtype.itemsize
        length = max(0, min(end, row // number) - begin) * number
        return torch.stack([self._taken(kept, sample * row + begin * number, length) for sample in range(samples)])

    def _taken(self, kept: Kept, begin: int, length: int) -> Tensor:
        """Bytes of a tensor on disk, as its numbers."""
        place, _ = self._places[kept._key]
        found = torch.empty(length, dtype=torch.uint8)
        assert self._file is not None
        self._file.seek(place + begin)
        rest = found.numpy().data
        while rest:
            got: int = self._file.readinto(rest)  # type: ignore[attr-defined]
            if not got:
                raise FileError("the file of states that do not fit into main memory is cut short. Search again.")
            rest = rest[got:]
        return found.view(kept.dtype)


def part_of(value: Tensor | Kept, begin: int, end: int) -> Tensor:
    """Some numbers of each sample, of shape [N, end - begin], wherever they lie."""
    return value.part(begin, end) if isinstance(value, Kept) else value.flatten(1)[:, begin:end]


def _marked(tensor: Tensor, kept: Any) -> Tensor:
    setattr(tensor, MARK, kept)
    return tensor
