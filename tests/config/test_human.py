import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.human import format_bytes, format_value, parse_boolean, parse_integer, parse_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("4k", 4000),
        ("4K", 4096),
        ("1.5k", 1500),
        ("2M", 2 << 20),
        ("2m", 2_000_000),
        ("1g", 10**9),
        ("1T", 1 << 40),
        (" 7 ", 7),
        ("-3", -3),
    ],
)
def test_small_suffixes_are_decimal_and_capital_ones_binary(text: str, value: int) -> None:
    assert parse_integer(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("512MiB", 512 << 20), ("2GB", 2 * 10**9), ("2gb", None), ("2G", 2 << 30), ("100B", 100), ("1 GiB", 1 << 30)],
)
def test_bytes_take_units(text: str, value: int | None) -> None:
    if value is None:
        with pytest.raises(ValueError, match="not an integer"):
            parse_integer(text, bytes_unit=True)
    else:
        assert parse_integer(text, bytes_unit=True) == value


@pytest.mark.parametrize("text", ["", "many", "1e3", "0x10", "4KB", "1.3", "1.0001k", "٣", "--1"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_integer(text)


@given(st.integers(-(10**30), 10**30))
def test_every_plain_integer_comes_back(value: int) -> None:
    assert parse_integer(str(value)) == value


def test_booleans_and_numbers() -> None:
    assert [parse_boolean(t) for t in ("true", "Yes", "ON", "1")] == [True] * 4
    assert [parse_boolean(t) for t in ("false", "no", "off", "0")] == [False] * 4
    with pytest.raises(ValueError, match="neither"):
        parse_boolean("maybe")
    assert parse_number("0.5") == 0.5
    with pytest.raises(ValueError, match="not a number"):
        parse_number("half")


def test_values_are_shown_as_people_write_them() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(1023) == "1023 B"
    assert format_bytes(98_362_432) == "93.8 MiB"
    assert format_bytes(3 << 40) == "3.0 TiB"
    assert format_value(None, "tokens") == "auto"
    assert format_value(True, "switch") == "true"
    assert format_value(("a", "b"), "names") == "a, b"
    assert format_value(1 << 20, "bytes") == "1.0 MiB"
    assert format_value(5.0, "seconds") == "5"
