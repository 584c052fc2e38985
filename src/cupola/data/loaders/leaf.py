"""LEAF sets (Caldas et al. 2018) with natural owners: FEMNIST, Sent140, Shakespeare.

LEAF's layout is folders all_data/, or train/ and test/, of JSON files with users, num_samples and
user_data. Test rows of users who also train are held out at them (`local_test`); test users who
never train make the public test set. The layout is looked for in the option folder, CUPOLA_DATA and
the cache, and in NAME/ and NAME/data/ there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import PositiveInt

from cupola.data.dataset import Dataset, Source
from cupola.data.download import Files
from cupola.data.loaders._common import classes, need, read_npz
from cupola.data.loading import dataset
from cupola.data.words import vocabulary as known_words
from cupola.data.words import words_of
from cupola.errors import DataError

# The 80 characters of LEAF's Shakespeare; any other becomes a space.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PADDING, _UNKNOWN, _FIRST_WORD = 0, 1, 2


@dataset("femnist")
def femnist(files: Files) -> Source:
    """Handwritten characters by writer, 1 x 28 x 28, 62 classes, in LEAF's layout."""
    rows = _Rows.read(files)

    def part(x: list[Any], y: list[Any]) -> Dataset:
        pixels = np.rint(np.array(x, np.float64).reshape(-1, 1, 28, 28) * 255)
        return Dataset(torch.from_numpy(pixels.astype(np.uint8)), classes(np.array(y)))

    return rows.source("femnist", part, kind="classification", classes=62, class_names=(*LETTERS,))


@dataset("sent140")
def sent140(
    files: Files,
    length: PositiveInt = 25,
    words: PositiveInt = 10_000,
    vocabulary: str | Path | None = None,
) -> Source:
    """Tweets by user, negative or positive, as `length` int64 word ids (0 pads at the end, 1 is any
    other word). Reads LEAF's layout, or sent140_users.npz (text, y, user, local_test).

    vocabulary: file whose lines start with a word (a file of word vectors will do), of which the
    first `words` are used. Without it the `words` most frequent words of all users' training tweets
    are taken, which only a simulation can do: at real sites the vocabulary must be given or public.
    """
    npz = None if _leaf_folder(files) else files.look("sent140_users.npz")
    if npz is None:
        rows = _Rows.read(files)
        rows.x = [tweet[4] if isinstance(tweet, list) else tweet for tweet in rows.x]
    else:
        stored = read_npz(npz)
        need(stored, ["text", "y", "user", "local_test"], npz)
        rows = _Rows(
            bytes(stored["text"]).decode().split("\n"),
            list(stored["y"]),
            [f"user {u}" for u in stored["user"]],
            stored["local_test"].astype(bool),
        )
    tokens = [words_of(text) for text in rows.x]
    trained = (t for t, held in zip(tokens, rows.held) if not held)
    known = known_words("sent140", vocabulary, trained, words)
    ids = {word: i for i, word in enumerate(known, _FIRST_WORD)}
    table = np.full((len(tokens), length), _PADDING, np.int64)
    for row, found in zip(table, tokens):
        row[: len(found)] = [ids.get(word, _UNKNOWN) for word in found[:length]]
    rows.x = list(table)

    def part(x: list[Any], y: list[Any]) -> Dataset:
        labels = np.array([int(label) for label in y], np.int64)
        inputs = np.stack(x) if x else np.empty((0, length), np.int64)
        return Dataset(torch.from_numpy(inputs), classes(labels > 0))  # Sent140 itself says 0 and 4

    return rows.source(
        "sent140",
        part,
        kind="classification",
        classes=2,
        class_names=("negative", "positive"),
        vocabulary=len(known) + _FIRST_WORD,
        words=("<pad>", "<unk>", *known),
    )


@dataset("shakespeare")
def shakespeare(files: Files, length: PositiveInt = 80) -> Source:
    """Next character in the lines of a role: x and y are int64 (n, length), y is x one step on; 80
    characters (LEAF's). Reads LEAF's layout (windows as LEAF made them), or shakespeare_roles.npz
    (text, role, local_test, role_names), whose speeches are joined and cut into windows end to end;
    roles with less than one window are left out.
    """
    npz = None if _leaf_folder(files) else files.look("shakespeare_roles.npz")
    if npz is None:
        rows = _Rows.read(files)
        rows.x = [(x + y)[-(length + 1) :] for x, y in zip(rows.x, rows.y)]
        short = [len(text) for text in rows.x if len(text) <= length]
        if short:
            raise DataError(f"shakespeare: length = {length}, but windows have {short[0] - 1}")
        rows.x = list(_encode("".join(rows.x)).reshape(-1, length + 1))
    else:
        rows = _roles(npz, length)

    def part(x: list[Any], _: list[Any]) -> Dataset:
        ids = torch.from_numpy(np.stack(x) if x else np.empty((0, length + 1), np.int64))
        return Dataset(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())

    n = len(ALPHABET)
    return rows.source(
        "shakespeare", part, kind="language", classes=n, class_names=(*ALPHABET,), vocabulary=n
    )


def _encode(text: str) -> np.ndarray:
    """Ids of characters in ALPHABET."""
    table = np.full(256, ALPHABET.index(" "), np.int64)
    for i, character in enumerate(ALPHABET):
        table[ord(character)] = i
    # "\x7f" is no member of the alphabet, so characters beyond ASCII become a space as well.
    plain = (
        text.encode("ascii", "replace")
        if text.isascii()
        else bytes(ord(c) if ord(c) < 128 else 127 for c in text)
    )
    return table[np.frombuffer(plain, np.uint8)]


def _roles(path: Path, length: int) -> _Rows:
    stored = read_npz(path)
    need(stored, ["text", "role", "local_test", "role_names"], path)
    speeches: dict[tuple[int, bool], list[str]] = {}
    lines = bytes(stored["text"]).decode().split("\n")
    for line, role, held in zip(lines, stored["role"], stored["local_test"].astype(bool)):
        speeches.setdefault((int(role), bool(held)), []).append(line)
    x, owners, local = [], [], []
    for (role, held), said in sorted(speeches.items()):
        ids = _encode("\n".join(said))
        count = (len(ids) - 1) // length
        for start in range(0, count * length, length):
            x.append(ids[start : start + length + 1])
        owners += [str(stored["role_names"][role])] * count
        local += [held] * count
    trained = {owner for owner, held in zip(owners, local) if not held}
    keep = [owner in trained for owner in owners]
    return _Rows(
        [r for r, k in zip(x, keep) if k],
        [None] * sum(keep),
        [o for o, k in zip(owners, keep) if k],
        np.array([h for h, k in zip(local, keep) if k], bool),
    )


def _leaf_folder(files: Files) -> Path | None:
    for place in files.places():
        for folder in (place, place / "data", place / files.name, place / files.name / "data"):
            if any((folder / part).is_dir() for part in ("train", "all_data")):
                return folder
    return None


@dataclass
class _Rows:
    """Rows of all users, in the order of the files: inputs, targets, owner, held out."""

    x: list[Any]
    y: list[Any]
    owner: list[str]
    held: np.ndarray

    @classmethod
    def read(cls, files: Files) -> _Rows:
        """From LEAF's layout."""
        folder = _leaf_folder(files)
        if folder is None:
            looked = ", ".join(str(p) for p in files.places())
            raise DataError(
                f"{files.name}: no train/ or all_data/ folder of LEAF's JSON files in {looked}; "
                f"make them with LEAF (leaf.cmu.edu) and put it at {files.places()[-1]}, "
                "or name its folder with folder=..."
            )
        x, y, owner, held = [], [], [], []  # type: tuple[list[Any], list[Any], list[str], list[bool]]
        for part in ["train", "test"] if (folder / "train").is_dir() else ["all_data"]:
            for path in sorted((folder / part).glob("*.json")):
                for user, inputs, targets in _users(path):
                    x += inputs
                    y += targets
                    owner += [user] * len(inputs)
                    held += [part == "test"] * len(inputs)
        if not x:
            raise DataError(f"{folder}: no rows in its JSON files")
        return cls(x, y, owner, np.array(held, bool))

    def source(self, name: str, part: Any, **facts: Any) -> Source:
        """`part` makes a Dataset of inputs and targets."""
        trained = {o for o, held in zip(self.owner, self.held) if not held}
        number = {o: i for i, o in enumerate(dict.fromkeys(o for o in self.owner if o in trained))}
        here = [i for i, o in enumerate(self.owner) if o in number]
        away = [i for i, o in enumerate(self.owner) if o not in number]

        def rows(index: list[int]) -> Dataset:
            return part([self.x[i] for i in index], [self.y[i] for i in index])

        held = self.held[here]
        return Source(
            name,
            train=rows(here),
            test=rows(away) if away else None,
            groups=np.array([number[self.owner[i]] for i in here], np.int64),
            group_names=tuple(number),
            local_test=held if held.any() else None,
            **facts,
        )


def _users(path: Path) -> list[tuple[str, list[Any], list[Any]]]:
    """(user, inputs, targets) of one LEAF file."""
    try:
        stored = json.loads(path.read_text("utf-8"))
        found = [
            (u, stored["user_data"][u]["x"], stored["user_data"][u]["y"]) for u in stored["users"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a LEAF file with users and user_data ({error!r})") from None
    for user, x, y in found:
        if len(x) != len(y):
            raise DataError(f"{path}: user {user!r} has {len(x)} inputs but {len(y)} targets")
    return found
