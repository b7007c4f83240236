//! The output of `local`: a table, or one JSON object per line.

use std::io::{self, Write};

use serde::Serialize;

use crate::measure::Measured;

/// One comparison. Field names and order are the format of `--json`.
#[derive(Serialize)]
pub(crate) struct Row {
    /// The case; for any peer but the first, followed by a dot and the peer's name.
    case: String,
    ours_ns: f64,
    peer: &'static str,
    peer_ns: f64,
    /// Ours divided by the peer's: below one, Phalanx is faster.
    ratio: f64,
    #[serde(skip)]
    bar: Option<f64>,
}

pub(crate) fn rows(measured: &[Measured]) -> Vec<Row> {
    let mut rows = Vec::new();
    for case in measured {
        for (index, &(peer, peer_ns)) in case.peers.iter().enumerate() {
            let is_named_by_the_bar = index == 0;
            rows.push(Row {
                case: if is_named_by_the_bar { case.case.to_owned() } else { format!("{}.{peer}", case.case) },
                ours_ns: rounded(case.ours_ns, 1),
                peer,
                peer_ns: rounded(peer_ns, 1),
                ratio: rounded(case.ours_ns / peer_ns, 4),
                bar: case.bar.filter(|_| is_named_by_the_bar),
            });
        }
    }
    rows
}

pub(crate) fn json(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    for row in rows {
        serde_json::to_writer(&mut *out, row)?;
        writeln!(out)?;
    }
    Ok(())
}

pub(crate) fn table(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let widest_case = rows.iter().map(|row| row.case.len()).max().unwrap_or(0);
    let widest_peer = rows.iter().map(|row| row.peer.len()).max().unwrap_or(0);
    let mut line = |case: &str, ours: &str, peer: &str, peer_ns: &str, ratio: &str, bar: &str| {
        let line = format!("{case:<widest_case$}  {ours:>9}  {peer:<widest_peer$}  {peer_ns:>9}  {ratio:>7}  {bar}");
        writeln!(out, "{}", line.trim_end())
    };
    line("case", "ours ns", "peer", "peer ns", "ratio", "bar")?;
    for row in rows {
        let nanoseconds = |ns: f64| format!("{ns:.1}");
        let bar =
            row.bar.map_or(String::new(), |bar| format!("{bar:<5} {}", if row.ratio <= bar { "ok" } else { "over" }));
        line(
            &row.case,
            &nanoseconds(row.ours_ns),
            row.peer,
            &nanoseconds(row.peer_ns),
            &format!("{:.3}", row.ratio),
            &bar,
        )?;
    }
    Ok(())
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::{json, rows};
    use crate::measure::Measured;

    #[test]
    fn the_first_peer_has_the_plain_name_and_the_others_come_after_a_dot() {
        let measured = Measured { case: "a", bar: Some(0.5), ours_ns: 10.0, peers: vec![("p", 40.0), ("q", 4.0)] };
        let mut out = Vec::new();
        json(&rows(&[measured]), &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"case\":\"a\",\"ours_ns\":10.0,\"peer\":\"p\",\"peer_ns\":40.0,\"ratio\":0.25}\n\
             {\"case\":\"a.q\",\"ours_ns\":10.0,\"peer\":\"q\",\"peer_ns\":4.0,\"ratio\":2.5}\n"
        );
    }
}
