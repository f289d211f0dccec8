"""The fast check of a text's lines accepts what programs write, and nothing that the exact pattern refuses."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gsparse.files.line_check import REAL, WHOLE, is_plain

KINDS: dict[str, list[str]] = {
    "array": [REAL],
    "pattern": [WHOLE, WHOLE],
    "integer": [WHOLE, WHOLE, WHOLE],
    "real": [WHOLE, WHOLE, REAL],
    "complex": [WHOLE, WHOLE, REAL, REAL],
}
_NUMBERS = {WHOLE: rb"[+-]?[0-9]+", REAL: rb"[+-]?[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?"}


def is_exact(text: bytes, numbers: list[str]) -> bool:
    """Return whether each line is blank or holds these kinds of numbers, line by line."""
    line = rb"[ \t]*(?:%b[ \t\r]*)?" % rb"[ \t]+".join(_NUMBERS[kind] for kind in numbers)
    assert text.endswith(b"\n")
    return all(re.fullmatch(line, part) for part in text[:-1].split(b"\n"))


def written(numbers: list[str], rng: np.random.Generator, count: int) -> bytes:
    """Return lines as programs write them, with numbers of 1 to 200 digits."""

    def number(kind: str) -> str:
        digits = "".join(map(str, rng.integers(0, 10, rng.choice([1, 5, 16, 200]))))
        forms = [digits, f"-{digits}", f"+{digits}"]
        if kind == REAL:
            forms += [f"0.{digits}", f"-{digits}.", f"{digits}.5e-05", f"1E+{digits}", f"7e{digits}"]
        return str(rng.choice(forms))

    blanks = [" ", "  ", "\t"]
    lines = [str(rng.choice(blanks)).join(map(number, numbers)) for _ in range(count)]
    endings = [str(rng.choice(["\n", "\n", " \n", "\r\n", "\n\n", "\n  "])) for _ in lines]
    return ("".join(map("".join, zip(lines, endings, strict=True))).rstrip() + "\n").encode()


@pytest.mark.parametrize("kind", KINDS)
def test_lines_as_programs_write_them_are_plain(kind: str, rng: np.random.Generator) -> None:
    for count in (1, 2, 3, 50):
        text = written(KINDS[kind], rng, count)
        assert is_exact(text, KINDS[kind])
        assert is_plain(text, KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_one_wrong_character_anywhere_is_never_plain(kind: str, rng: np.random.Generator) -> None:
    text = written(KINDS[kind], rng, 2)
    for position in range(len(text) - 1):
        for character in rng.choice(np.frombuffer(b" .+-e\n\rx,D\0\xff/:7", np.uint8), 3, replace=False):
            changed = text[:position] + bytes([character]) + text[position + 1 :]
            assert not is_plain(changed, KINDS[kind]) or is_exact(changed, KINDS[kind]), changed


@settings(deadline=None)
@given(st.text("07.+-eE \t\r\n", max_size=200), st.sampled_from(sorted(KINDS)))
def test_any_text_is_plain_only_if_each_line_holds_the_numbers(text: str, kind: str) -> None:
    encoded = text.encode() + b"\n"
    assert not is_plain(encoded, KINDS[kind]) or is_exact(encoded, KINDS[kind])
