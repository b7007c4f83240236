//! Formatting and parsing of numbers, as in Redis.

/// Formats a number that a script passes to a command, like C's `%.17g`: integers of up to 17 digits are plain.
pub(super) fn text(number: f64) -> String {
    if number.is_nan() {
        return if number.is_sign_negative() { "-nan" } else { "nan" }.to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:.16e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..17).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(digits), exponent.abs());
    }
    trimmed(&format!("{number:.*}", (16 - exponent).max(0) as usize)).to_owned()
}

fn trimmed(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

/// Parses an integer argument of a command.
pub(super) fn integer(text: &[u8]) -> Result<i64, String> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let canonical = text.parse::<i64>().ok().filter(|value| value.to_string() == text);
    canonical.ok_or_else(|| "ERR value is not an integer or out of range".to_owned())
}

/// Parses a score or one end of a score range: the number, and whether it is excluded.
pub(super) fn score(text: &[u8]) -> Result<(f64, bool), String> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let (text, excluded) = text.strip_prefix('(').map_or((text, false), |rest| (rest, true));
    let value = text.parse::<f64>().ok().filter(|value| !value.is_nan());
    value.map(|value| (value, excluded)).ok_or_else(|| "ERR value is not a valid float".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_redis_writes_them() {
        let cases = [
            (0.0, "0"),
            (-1.0, "-1"),
            (1_700_000_000_000_000.0, "1700000000000000"),
            (9_007_199_254_740_992.0, "9007199254740992"),
            (1e17, "1e+17"),
            (0.5, "0.5"),
            (0.1, "0.10000000000000001"),
            (1e-7, "9.9999999999999995e-08"),
            (f64::INFINITY, "inf"),
        ];
        for (number, expected) in cases {
            assert_eq!(text(number), expected);
        }
    }

    #[test]
    fn only_canonical_integers_are_accepted() {
        assert_eq!(integer(b"-12"), Ok(-12));
        for wrong in ["", "1.0", "+1", "01", "1e3", " 1"] {
            assert!(integer(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
