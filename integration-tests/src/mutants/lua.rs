//! Makes the mutants of a Lua script, in the order of its text.
//!
//! Each mutant is the whole script with one change: another comparison, another arithmetic operator, a number one higher or
//! lower, `and` for `or`, `min` for `max`, `floor` for `ceil`, `true` for `false`, a negated condition, a `not` or a minus
//! sign left out, or a call or assignment left out. Strings and comments stay as they are.

use std::fs;
use std::path::Path;

/// A script with one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// The file, relative to `lua/scripts`.
    pub file: String,
    /// The line of the change, from 1.
    pub line: usize,
    /// The number of the mutant in its line, from 1.
    pub number: usize,
    /// The line before the change, trimmed.
    pub before: String,
    /// The line after the change, trimmed.
    pub after: String,
    /// The text of the file.
    pub original: String,
    /// The text of the file with the change.
    pub source: String,
}

impl Mutant {
    /// Returns `file:line:number`.
    pub fn id(&self) -> String {
        format!("{}:{}:{}", self.file, self.line, self.number)
    }
}

/// Returns the mutants of all scripts in this folder. The clocks are left out: one needs a server, the other is for tests.
pub fn mutants_in(scripts: &Path) -> Vec<Mutant> {
    let mut files: Vec<_> = ["", "include/"].iter().flat_map(|folder| files_in(scripts, folder)).collect();
    files.retain(|file| !file.starts_with("include/clock"));
    files.sort();
    let of_file = |file: &String| {
        let source = fs::read_to_string(scripts.join(file)).expect("the script is readable");
        mutants_of(file, &source)
    };
    files.iter().flat_map(of_file).collect()
}

fn files_in(scripts: &Path, folder: &str) -> Vec<String> {
    let entries = fs::read_dir(scripts.join(folder)).expect("the folder of the scripts is readable");
    let names = entries.map(|entry| entry.expect("the folder is readable").file_name().into_string().expect("a name"));
    names.filter(|name| name.ends_with(".lua")).map(|name| format!("{folder}{name}")).collect()
}

/// Returns the mutants of one script.
pub fn mutants_of(file: &str, source: &str) -> Vec<Mutant> {
    let tokens = tokens(source);
    let mut edits: Vec<Edit> = (0..tokens.len()).flat_map(|index| edits_at(source, &tokens, index)).collect();
    edits.sort_by_key(|edit| edit.start);
    let mut numbers = vec![0; source.lines().count() + 1];
    let mutant = |edit: Edit| {
        let changed = format!("{}{}{}", &source[..edit.start], edit.with, &source[edit.end..]);
        let line = source[..edit.start].matches('\n').count();
        numbers[line] += 1;
        let text = |source: &str| source.lines().nth(line).unwrap_or_default().trim().to_owned();
        Mutant {
            file: file.to_owned(),
            line: line + 1,
            number: numbers[line],
            before: text(source),
            after: text(&changed),
            original: source.to_owned(),
            source: changed,
        }
    };
    edits.into_iter().map(mutant).collect()
}

/// Text to replace by another.
struct Edit {
    start: usize,
    end: usize,
    with: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Name,
    Keyword,
    Number,
    Text,
    Symbol,
}

#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    kind: Kind,
    text: &'a str,
    start: usize,
    /// How many brackets are open before it.
    depth: usize,
    /// Whether it is the first of its line.
    first: bool,
}

impl Token<'_> {
    const fn end(&self) -> usize {
        self.start + self.text.len()
    }

    /// Returns whether an expression can end with it.
    fn ends_an_expression(&self) -> bool {
        matches!(self.kind, Kind::Name | Kind::Number | Kind::Text)
            || matches!(self.text, ")" | "]" | "}" | "..." | "true" | "false" | "nil")
    }
}

const KEYWORDS: [&str; 18] = [
    "and", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not", "or",
    "return", "then", "true", "while",
];

/// Splits a script into tokens; comments are no tokens.
fn tokens(source: &str) -> Vec<Token<'_>> {
    let (mut tokens, mut at, mut depth) = (Vec::<Token<'_>>::new(), 0, 0_usize);
    let mut line_start = true;
    while let Some(next) = source[at..].chars().next() {
        let rest = &source[at..];
        if next.is_whitespace() {
            line_start |= next == '\n';
            at += next.len_utf8();
        } else if rest.starts_with("--") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else {
            let (kind, length) = token_at(rest);
            let text = &rest[..length];
            depth -= usize::from(matches!(text, ")" | "]" | "}")).min(depth);
            tokens.push(Token { kind, text, start: at, depth, first: line_start });
            depth += usize::from(matches!(text, "(" | "[" | "{"));
            line_start = false;
            at += length;
        }
    }
    tokens
}

/// Returns the kind and the length of the token at the beginning of `rest`.
fn token_at(rest: &str) -> (Kind, usize) {
    let length_while = |inside: fn(char) -> bool| rest.find(|c| !inside(c)).unwrap_or(rest.len());
    match rest.as_bytes()[0] {
        b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
            let length = length_while(|c| c.is_ascii_alphanumeric() || c == '_');
            (if KEYWORDS.contains(&&rest[..length]) { Kind::Keyword } else { Kind::Name }, length)
        }
        b'0'..=b'9' => (Kind::Number, length_while(|c| c.is_ascii_digit())),
        quote @ (b'\'' | b'"') => {
            let mut escaped = false;
            let closes = |&(_, &byte): &(usize, &u8)| {
                let closes = byte == quote && !escaped;
                escaped = byte == b'\\' && !escaped;
                closes
            };
            let end = rest.as_bytes().iter().enumerate().skip(1).find(closes).map_or(rest.len(), |(end, _)| end + 1);
            (Kind::Text, end)
        }
        _ => {
            let symbols = ["...", "..", "==", "~=", "<=", ">="];
            (Kind::Symbol, symbols.iter().find(|symbol| rest.starts_with(**symbol)).map_or(1, |symbol| symbol.len()))
        }
    }
}

/// Returns the changes that begin at this token.
fn edits_at(source: &str, tokens: &[Token<'_>], index: usize) -> Vec<Edit> {
    let token = tokens[index];
    let before = index.checked_sub(1).map(|before| tokens[before]);
    let replace = |with: &str| Edit { start: token.start, end: token.end(), with: with.to_owned() };
    let mut edits = Vec::from_iter(removal(tokens, index));
    match token.kind {
        Kind::Number => {
            let number: u64 = token.text.parse().expect("a number is made of digits");
            edits.push(replace(&(number + 1).to_string()));
            edits.push(replace(&number.checked_sub(1).map_or("(-1)".to_owned(), |less| less.to_string())));
        }
        Kind::Symbol => {
            let unary = !before.is_some_and(|before| before.ends_an_expression());
            let with = match token.text {
                "<" => "<=",
                "<=" => "<",
                ">" => ">=",
                ">=" => ">",
                "==" => "~=",
                "~=" => "==",
                "-" if unary => "",
                "-" => "+",
                "+" => "-",
                "*" | "%" => "/",
                "/" => "*",
                _ => return edits,
            };
            edits.push(replace(with));
        }
        Kind::Keyword => match token.text {
            "and" => edits.push(replace("or")),
            "or" => edits.push(replace("and")),
            "not" => edits.push(replace("")),
            "true" => edits.push(replace("false")),
            "false" => edits.push(replace("true")),
            "if" | "elseif" | "while" => {
                let closing = if token.text == "while" { "do" } else { "then" };
                let then = tokens[index..].iter().find(|token| token.text == closing).expect("a condition has an end");
                let (start, end) = (token.end(), then.start);
                let with = format!(" not ({}) ", source[start..end].trim());
                edits.push(Edit { start, end, with });
            }
            _ => {}
        },
        Kind::Name if before.is_some_and(|before| before.text == ".") => {
            let with = match token.text {
                "min" => "max",
                "max" => "min",
                "floor" => "ceil",
                "ceil" => "floor",
                _ => return edits,
            };
            edits.push(replace(with));
        }
        Kind::Name | Kind::Text => {}
    }
    edits
}

/// Returns the change that leaves out the call or assignment that begins at this token and ends in its line.
fn removal(tokens: &[Token<'_>], index: usize) -> Option<Edit> {
    let token = tokens[index];
    let opens_a_block = |token: &Token<'_>| matches!(token.text, "then" | "do" | "else");
    let begins = token.first || opens_a_block(&tokens[index.checked_sub(1)?]);
    if token.kind != Kind::Name || token.depth > 0 || !begins {
        return None;
    }
    let ends_a_line = |next: &Token<'_>| next.first || next.text == "end" && next.depth == 0;
    let length = tokens[index + 1..].iter().position(ends_a_line).unwrap_or(tokens.len() - index - 1) + 1;
    let (last, next) = (tokens[index + length - 1], tokens.get(index + length));
    let continues = next.is_some_and(|next| next.depth > 0 || matches!(next.text, "and" | "or" | ".." | "}" | ")"));
    let whole = last.ends_an_expression() && !continues;
    whole.then(|| Edit { start: token.start, end: last.end(), with: String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(source: &str) -> Vec<String> {
        mutants_of("a.lua", source).into_iter().map(|mutant| mutant.after).collect()
    }

    #[test]
    fn every_operator_and_number_is_changed_once() {
        assert_eq!(changes("return a < b"), ["return a <= b"]);
        assert_eq!(changes("return a ~= 7"), ["return a == 7", "return a ~= 8", "return a ~= 6"]);
        assert_eq!(changes("return -a - b"), ["return a - b", "return -a + b"]);
        assert_eq!(
            changes("return a and b or not c"),
            ["return a or b or not c", "return a and b and not c", "return a and b or  c"]
        );
        assert_eq!(
            changes("return math.min(a, math.floor(b))"),
            ["return math.max(a, math.floor(b))", "return math.min(a, math.ceil(b))"]
        );
        assert_eq!(changes("local a = 0"), ["local a = 1", "local a = (-1)"]);
    }

    #[test]
    fn conditions_are_negated_and_calls_and_assignments_are_left_out() {
        assert_eq!(changes("if a(b) then c(d) end"), ["if not (a(b)) then c(d) end", "if a(b) then  end"]);
        assert_eq!(changes("save(a)\nb.c = d"), ["", ""]);
        assert_eq!(changes("for _, a in b(c) do d(a) end"), ["for _, a in b(c) do  end"]);
        assert_eq!(changes("local a = {\n  b = c,\n}"), Vec::<String>::new());
        assert_eq!(changes("a = b\n  and c"), ["or c"], "a statement of two lines stays");
    }

    #[test]
    fn strings_and_comments_stay_as_they_are() {
        assert_eq!(changes("-- a < b\nreturn 'c > 1 \\' or 2' .. d -- 3"), Vec::<String>::new());
    }

    #[test]
    fn mutants_are_numbered_in_their_line_and_hold_the_whole_text() {
        let mutants = mutants_of("include/a.lua", "local a\nreturn b < c + 1\n");
        let ids: Vec<_> = mutants.iter().map(Mutant::id).collect();
        assert_eq!(ids, ["include/a.lua:2:1", "include/a.lua:2:2", "include/a.lua:2:3", "include/a.lua:2:4"]);
        assert_eq!(mutants[1].source, "local a\nreturn b < c - 1\n");
        assert_eq!((&*mutants[1].before, &*mutants[1].after), ("return b < c + 1", "return b < c - 1"));
    }

    #[test]
    fn every_shipped_script_has_mutants_and_every_mutant_differs() {
        let mutants = mutants_in(&crate::mutants::workspace().join("lua/scripts"));
        assert!(mutants.iter().all(|mutant| mutant.source != mutant.original));
        // A script that only calls what it includes has none of its own.
        for script in phalanx_lua::ALL {
            assert!(mutants.iter().any(|mutant| script.virtual_source.contains(&mutant.original)), "{}", script.name);
        }
        let embedded = |mutant: &Mutant| phalanx_lua::ALL.iter().any(|s| s.virtual_source.contains(&mutant.original));
        assert!(mutants.iter().all(embedded), "a mutant of a file that no script includes would never run");
    }
}
