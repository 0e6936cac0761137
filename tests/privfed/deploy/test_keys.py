"""Keys of sites: their files, their text, and whom signatures are of."""

import base64
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanes import every_case

from privfed.core.errors import Refused
from privfed.deploy.files.keys import _SMALL_ORDER, KeyUnusable, PublicKey, SiteKey, UnknownKey


@pytest.fixture
def key():
    return SiteKey.draw("berlin")


def test_a_key_is_read_as_it_was_written(tmp_path, key):
    key.write(tmp_path / "key")
    again = SiteKey.read(tmp_path / "key")
    assert (again.name, again.public) == ("berlin", key.public)
    assert key.public.verifies(again.sign(b"text"), b"text")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        SiteKey.draw("berlin").write(tmp_path / "key")


def test_a_signature_is_of_one_key_and_one_text(key):
    signature = key.sign(b"text")
    assert not key.public.verifies(signature, b"texts")
    assert not SiteKey.draw("paris").public.verifies(signature, b"text")
    assert not key.public.verifies(b"", b"text")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_may_read_is_not_used(tmp_path, key, mode):
    key.write(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(KeyUnusable, match=f"mode {mode:o}"):
        SiteKey.read(tmp_path / "key")


def test_damaged_and_missing_keys_are_named_and_not_quoted(tmp_path, key):
    path = tmp_path / "key"
    with pytest.raises(KeyUnusable, match="No such file"):
        SiteKey.read(path)
    key.write(path)
    intact = path.read_bytes()
    for damaged in (
        b"",
        intact[:-3],
        intact.replace(b"secret", b"public"),
        b"\xff" * 70,
        b"a " * 99,
    ):
        path.write_bytes(damaged)
        with pytest.raises(KeyUnusable) as error:
            SiteKey.read(path)
        assert intact.decode().split(":")[1][:20] not in str(error.value)
    assert error.value.exit_code == 5


def test_a_key_shows_no_secret(key):
    secret = base64.urlsafe_b64encode(key.identity.private_bytes_raw()).decode()[:20]
    assert secret not in repr(key)


def test_both_spellings_are_the_same_key(key):
    text = str(key.public)
    assert text.startswith("ed25519:")
    assert "=" not in text
    assert PublicKey.parse(text) == key.public == PublicKey.parse(f"ed25519:{key.public.raw.hex()}")
    assert PublicKey.parse(f"ed25519:{key.public.raw.hex().upper()}") == key.public


@given(st.binary(min_size=32, max_size=32))
def test_any_other_letter_spells_another_key_or_none(raw):
    text = "ed25519:" + base64.urlsafe_b64encode(raw).decode().rstrip("=")
    spelt = []
    for last in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_":
        try:
            spelt.append(PublicKey.parse(text[:-1] + last).raw)
        except UnknownKey:
            continue
    assert len(spelt) == len({*spelt}) <= 16


@every_case(
    "text", ["", "ed25519:", "x25519:" + "a" * 43, "ed25519:" + "é" * 43, "ed25519:" + "A" * 44]
)
def test_what_spells_no_key_is_named(text):
    with pytest.raises(UnknownKey):
        PublicKey.parse(text)


@every_case(
    ("text", "mistake"),
    [
        ("a" * 42, "found 42 characters: copy the complete line"),
        ("a" * 63, "found 63 characters: copy the complete line"),
        ("a" * 20 + "!" + "a" * 22, "character 21 of 43 is none of these"),
        ("a" * 63 + "g", "character 64 of 64 is none of these"),
        ("a" * 42 + "B", "the last of 43 characters"),
    ],
)
def test_a_mistyped_key_is_of_another_length_or_has_another_character(text, mistake):
    with pytest.raises(UnknownKey, match=mistake):
        PublicKey.parse(f"ed25519:{text}")


@every_case("name", ["", "a b", "-a", "a/b", "a" * 65, 'a"'])
def test_names_are_words(name):
    with pytest.raises(Refused, match="expected at most 64 letters"):
        SiteKey.draw(name)


P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P


def add(a, b):
    """The sum of two points of edwards25519."""
    (x, y), (u, v) = a, b
    t = D * x * u * y * v % P
    return (x * v + y * u) * pow(1 + t, -1, P) % P, (y * v + x * u) * pow(1 - t, -1, P) % P


def point(raw):
    """The point that an encoding stands for, with either sign."""
    y = int.from_bytes(raw, "little") % P
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    assert x * x % P == square
    return x, y


def test_keys_for_which_anybody_signs_are_no_keys():
    """Points whose eightfold is the neutral one: eight points, in all encodings but for signs."""
    for raw in _SMALL_ORDER:
        eightfold = point(raw)
        for _ in range(3):
            eightfold = add(eightfold, eightfold)
        assert eightfold == (0, 1)
        for sign in (0, 128):
            with pytest.raises(UnknownKey):
                PublicKey(raw[:-1] + bytes([raw[-1] | sign]))
    ys = {point(raw)[1] for raw in _SMALL_ORDER}
    eighth = next(point(raw) for raw in _SMALL_ORDER if raw[0] == 0x26)
    group = list(itertools.accumulate([eighth] * 8, add))
    assert len({*group}) == 8
    assert {y for _, y in group} == ys
