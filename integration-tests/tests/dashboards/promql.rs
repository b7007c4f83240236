//! Extracts the selectors of a PromQL expression: series, labels and values.
//!
//! Not a complete parser: it recognizes metrics, functions and labels, and rejects everything else, so that nothing is
//! skipped silently.

use std::collections::BTreeSet;

use crate::tokens::{self, Token};

/// The series that an expression selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) metric: String,
    pub(crate) matchers: Vec<Matcher>,
    /// Labels that it must have because an outer expression groups or matches by them.
    pub(crate) labels: BTreeSet<String>,
    /// Whether only `labels` are left after grouping.
    pub(crate) grouped: bool,
}

/// A matcher such as `label="value"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Matcher {
    pub(crate) label: String,
    pub(crate) sign: &'static str,
    pub(crate) value: String,
}

const AGGREGATIONS: [&str; 10] =
    ["sum", "min", "max", "avg", "count", "group", "stddev", "topk", "bottomk", "quantile"];
const FUNCTIONS: [&str; 16] = [
    "rate",
    "irate",
    "increase",
    "delta",
    "histogram_quantile",
    "max_over_time",
    "min_over_time",
    "avg_over_time",
    "sum_over_time",
    "count_over_time",
    "absent",
    "clamp_max",
    "clamp_min",
    "vector",
    "round",
    "time",
];
const WORDS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];
const MATCHINGS: [&str; 4] = ["on", "ignoring", "group_left", "group_right"];

/// Returns every selector of an expression.
pub(crate) fn selectors(expression: &str) -> Result<Vec<Selector>, String> {
    let mut reader = Reader { tokens: tokens::read(expression)?, at: 0 };
    let found = reader.expression()?;
    match reader.peek() {
        None => Ok(found),
        Some(token) => Err(format!("{token:?} is left over in {expression}")),
    }
}

/// Parses the query of a Grafana variable: `label_values(selector, label)`.
pub(crate) fn variable(query: &str) -> Result<Selector, String> {
    let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
    let (selector, label) =
        inner.and_then(|inner| inner.rsplit_once(',')).ok_or_else(|| format!("not a label_values query: {query}"))?;
    let mut found = selectors(selector)?;
    match (found.pop(), found.len()) {
        (Some(mut one), 0) => {
            one.labels.insert(label.trim().to_owned());
            Ok(one)
        }
        _ => Err(format!("not one selector: {query}")),
    }
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
}

impl Reader {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Option<Token> {
        self.at += 1;
        self.tokens.get(self.at - 1).cloned()
    }

    fn accept(&mut self, sign: &str) -> bool {
        let there = self.peek().is_some_and(|token| matches!(token, Token::Sign(found) if *found == sign));
        self.at += usize::from(there);
        there
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.accept(sign) { Ok(()) } else { Err(format!("no {sign} before {:?}", self.peek())) }
    }

    /// Reads up to the closing comma or parenthesis, or to the end.
    fn expression(&mut self) -> Result<Vec<Selector>, String> {
        let mut found: Vec<Selector> = Vec::new();
        let mut matched = BTreeSet::new();
        while let Some(token) = self.peek().cloned() {
            match token {
                Token::Sign(")" | ",") => break,
                Token::Sign("(") => found.extend(self.arguments()?),
                Token::Name(name) => {
                    self.at += 1;
                    match name.as_str() {
                        word if WORDS.contains(&word) => {}
                        word if MATCHINGS.contains(&word) => matched.extend(self.optional_labels()?),
                        word if AGGREGATIONS.contains(&word) => found.extend(self.aggregation()?),
                        _ if matches!(self.peek(), Some(Token::Sign("("))) => found.extend(self.function(&name)?),
                        _ => found.push(self.selector(name)?),
                    }
                }
                Token::Text(text) => return Err(format!("{text:?} stands alone")),
                Token::Sign("{" | "}" | "=") => return Err(format!("{token:?} without a metric")),
                Token::Sign(_) | Token::Number(_) | Token::Range(_) => self.at += 1,
            }
        }
        // A side that matches by a label must have that label.
        found
            .iter_mut()
            .filter(|selector| !selector.grouped)
            .for_each(|selector| selector.labels.extend(matched.clone()));
        match matched.iter().find(|label| !found.iter().any(|selector| selector.labels.contains(*label))) {
            Some(label) => Err(format!("matches by {label}, which neither side has")),
            None => Ok(found),
        }
    }

    fn function(&mut self, name: &str) -> Result<Vec<Selector>, String> {
        if !FUNCTIONS.contains(&name) {
            return Err(format!("unknown function {name}"));
        }
        self.arguments()
    }

    /// `sum by (a, b) (…)` or `sum (…) by (a, b)`.
    fn aggregation(&mut self) -> Result<Vec<Selector>, String> {
        let before = self.grouping()?;
        let mut found = self.arguments()?;
        let grouping = match before {
            Some(grouping) => Some(grouping),
            None => self.grouping()?,
        };
        for selector in &mut found {
            match &grouping {
                // A label removed by an inner grouping cannot be grouped by again.
                Some((_, labels)) if selector.grouped => {
                    if let Some(label) = labels.iter().find(|label| !selector.labels.contains(*label)) {
                        return Err(format!("{label} was already removed from {}", selector.metric));
                    }
                }
                Some((_, labels)) => selector.labels.extend(labels.clone()),
                None => {}
            }
            selector.grouped |= !matches!(grouping, Some((false, _)));
        }
        Ok(found)
    }

    /// Reads a grouping: whether it is `by` (and not `without`), and its labels.
    fn grouping(&mut self) -> Result<Option<(bool, Vec<String>)>, String> {
        let by = match self.peek() {
            Some(Token::Name(word)) if word == "by" => true,
            Some(Token::Name(word)) if word == "without" => false,
            _ => return Ok(None),
        };
        self.at += 1;
        self.labels().map(|labels| Some((by, labels)))
    }

    fn optional_labels(&mut self) -> Result<Vec<String>, String> {
        if matches!(self.peek(), Some(Token::Sign("("))) { self.labels() } else { Ok(Vec::new()) }
    }

    fn labels(&mut self) -> Result<Vec<String>, String> {
        self.expect("(")?;
        let mut labels = Vec::new();
        while !self.accept(")") {
            match self.next() {
                Some(Token::Name(label)) => labels.push(label),
                other => return Err(format!("{other:?} is no label")),
            }
            self.accept(",");
        }
        Ok(labels)
    }

    /// Reads the expressions in parentheses.
    fn arguments(&mut self) -> Result<Vec<Selector>, String> {
        self.expect("(")?;
        let mut found = Vec::new();
        while !self.accept(")") {
            if self.peek().is_none() {
                return Err("no closing parenthesis".to_owned());
            }
            found.extend(self.expression()?);
            self.accept(",");
        }
        Ok(found)
    }

    fn selector(&mut self, metric: String) -> Result<Selector, String> {
        let mut matchers = Vec::new();
        if self.accept("{") {
            while !self.accept("}") {
                let matcher = match (self.next(), self.next(), self.next()) {
                    (
                        Some(Token::Name(label)),
                        Some(Token::Sign(sign @ ("=" | "!=" | "=~" | "!~"))),
                        Some(Token::Text(value)),
                    ) => Matcher { label, sign, value },
                    wrong => return Err(format!("{wrong:?} is no matcher")),
                };
                matchers.push(matcher);
                self.accept(",");
            }
        }
        Ok(Selector { metric, matchers, ..Selector::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(expression: &str) -> Vec<String> {
        let describe = |selector: Selector| {
            let matchers = selector.matchers.iter().map(|it| format!("{}{}{}", it.label, it.sign, it.value));
            let matchers = matchers.collect::<Vec<_>>().join(",");
            let labels = selector.labels.into_iter().collect::<Vec<_>>().join(",");
            format!("{}[{matchers}][{labels}]", selector.metric)
        };
        selectors(expression).unwrap().into_iter().map(describe).collect()
    }

    #[test]
    fn metrics_matchers_and_grouping_labels_are_found() {
        assert_eq!(asked("up"), ["up[][]"]);
        assert_eq!(asked(r#"a{b="c", d!~"e|f"} > 2"#), ["a[b=c,d!~e|f][]"]);
        assert_eq!(asked("sum by (x) (rate(a[5m])) / sum by (y) (rate(b[5m]))"), ["a[][x]", "b[][y]"]);
        assert_eq!(asked("sum (rate(a[$__rate_interval])) by (x, y)"), ["a[][x,y]"]);
        assert_eq!(
            asked("histogram_quantile(0.99, sum by (le, x) (rate(a_bucket[5m]))) > 0.5 * 1.5"),
            ["a_bucket[][le,x]"]
        );
        assert_eq!(asked("max by (x) (a > 0 unless a offset 15m) or b"), ["a[][x]", "a[][x]", "b[][]"]);
        assert_eq!(asked("2 * (max by (x) (a) + b) == 1"), ["a[][x]", "b[][]"]);
        assert_eq!(asked("sum by (c) (a) / ignoring (c) group_left () sum(b)"), ["a[][c]", "b[][]"]);
        assert_eq!(asked("max by (x) (sum by (x, y) (a))"), ["a[][x,y]"]);
    }

    #[test]
    fn unknown_syntax_is_rejected() {
        for wrong in [
            "summ(a)",
            "sum by (x (a)",
            "sum(a",
            "a)",
            "a, b",
            "{a=\"b\"}",
            "a{b}",
            "a{b=c}",
            "\"text\"",
            "max by (z) (sum by (x) (a))",
            "sum(a) / on (x) sum(b)",
        ] {
            assert!(selectors(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_variable_selects_a_label_of_a_metric() {
        let read = variable(r#"label_values(a{b=~"$b"}, c)"#).unwrap();
        assert_eq!((read.metric.as_str(), read.labels.first().map(String::as_str)), ("a", Some("c")));
        assert!(variable("metrics(a)").is_err());
    }
}
