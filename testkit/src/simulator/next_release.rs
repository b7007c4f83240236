//! The next release, as a rollout meets it: its scripts store one more field in every record, and slices of half the length.
//!
//! Its readers take records of both releases. Those of today's release take only their own (review 4.5).

use std::sync::OnceLock;

use phalanx_lua::Script;

use super::plant::edited;

/// The scripts of the next release.
pub(crate) fn scripts() -> &'static [Script] {
    static SCRIPTS: OnceLock<&'static [Script]> = OnceLock::new();
    SCRIPTS.get_or_init(|| {
        edited(&[
            // A bucket has a sixth number, which the reader may lack.
            ("'^1 (%-?%d+) (%d+) (%d+ %d+ %d+)$'", "'^1 (%-?%d+) (%d+) (%d+ %d+ %d+)'"),
            ("string.format('1 %.0f %.0f %s', level, at, rate)", "string.format('1 %.0f %.0f %s 7', level, at, rate)"),
            // A breaker has one more number at its end, and counts in slices of half the length.
            ("#w ~= 48 + 3 * w[48] then return end", "#w < 48 + 3 * w[48] then return end"),
            ("for i = 49, #w, 3 do", "for i = 49, 48 + 3 * w[48], 3 do"),
            (
                " .. ' ' .. #s.leases .. table.concat(text), 'PX'",
                " .. ' ' .. #s.leases .. table.concat(text) .. ' 7', 'PX'",
            ),
            (
                "slice_len = math.max(1, math.floor(w[5] / SLICES)),",
                "slice_len = math.max(1, math.floor(w[5] / (2 * SLICES))),",
            ),
        ])
    })
}
