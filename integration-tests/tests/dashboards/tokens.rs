//! The tokens of a PromQL expression.

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// A metric, label, function, keyword or Grafana variable (`$name`).
    Name(String),
    /// A number or a duration: `0.99`, `5m`.
    Number(String),
    /// A quoted string, unescaped.
    Text(String),
    /// A range in brackets: `5m`, `$__rate_interval`, `1h:1m`.
    Range(String),
    /// An operator or punctuation.
    Sign(&'static str),
}

/// Longest first.
const SIGNS: [&str; 20] =
    ["=~", "!~", "==", "!=", ">=", "<=", "(", ")", "{", "}", ",", "=", ">", "<", "+", "-", "*", "/", "%", "^"];

/// Splits an expression into tokens. The error describes the first invalid one.
pub(crate) fn read(expression: &str) -> Result<Vec<Token>, String> {
    let mut rest = expression.trim_start();
    let mut tokens = Vec::new();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '"' | '\'' => text(rest, first)?,
            '[' => {
                let end = rest.find(']').ok_or_else(|| format!("no end of {rest}"))?;
                (Token::Range(rest[1..end].trim().to_owned()), end + 1)
            }
            '#' => return Err("comments are not supported".to_owned()),
            first if is_name(first) && !first.is_ascii_digit() => {
                let word = taken(rest, is_name);
                (Token::Name(word.to_owned()), word.len())
            }
            first if first.is_ascii_digit() || first == '.' => {
                let word = taken(rest, |next| next.is_ascii_alphanumeric() || next == '.');
                (Token::Number(word.to_owned()), word.len())
            }
            _ => {
                let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
                let sign = sign.ok_or_else(|| format!("{first:?} is not an operator"))?;
                (Token::Sign(sign), sign.len())
            }
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

fn is_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':' | '$')
}

fn taken(text: &str, is_part: impl Fn(char) -> bool) -> &str {
    &text[..text.find(|letter| !is_part(letter)).unwrap_or(text.len())]
}

/// Reads a quoted string and returns its length in the expression.
fn text(rest: &str, quote: char) -> Result<(Token, usize), String> {
    let (mut inside, mut escaped) = (String::new(), false);
    for (at, letter) in rest.char_indices().skip(1) {
        match letter {
            _ if escaped => {
                inside.push(letter);
                escaped = false;
            }
            '\\' => escaped = true,
            letter if letter == quote => return Ok((Token::Text(inside), at + 1)),
            letter => inside.push(letter),
        }
    }
    Err(format!("no end of {rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_split_into_tokens() {
        use Token::{Name, Number, Range, Sign, Text};
        let read = read(r#"rate(a_total{b=~"x|\"y"}[5m]) >= 0.5 * $z offset 1h"#).unwrap();
        let name = |text: &str| Name(text.to_owned());
        let expected = [
            name("rate"),
            Sign("("),
            name("a_total"),
            Sign("{"),
            name("b"),
            Sign("=~"),
            Text("x|\"y".to_owned()),
            Sign("}"),
            Range("5m".to_owned()),
            Sign(")"),
            Sign(">="),
            Number("0.5".to_owned()),
            Sign("*"),
            name("$z"),
            name("offset"),
            Number("1h".to_owned()),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn invalid_tokens_are_errors() {
        for wrong in ["a{b=\"c}", "a[5m", "a ; b", "a & b", "a # b"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
