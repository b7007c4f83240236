//! The scripts of the next release, as the simulator's rollouts run them beside today's: `testkit/next_release` is today's
//! folder with the changes below. `PHALANX_RENEW_DOCS=1` writes it anew.

use std::fs;
use std::path::{Path, PathBuf};

/// What the next release changes: the file, today's text and its own.
const CHANGES: [(&str, &str, &str); 9] = [
    // A bucket has one more number at its end; readers of both releases keep it.
    ("include/bucket.lua", "local FRESH = EMPTY", "local FRESH = EMPTY .. ' 0 7'"),
    // Every line of a breaker has one more field, there is another line, a message is longer, and it counts in slices of
    // half the length.
    ("include/breaker_store.lua", "s.fingerprint) .. (s.more or ''),", "s.fingerprint) .. ' 7',"),
    ("include/breaker_store.lua", "counts .. window.more", "counts .. ' 7'"),
    ("include/breaker_store.lua", ".. table.concat(s.lines), 'PX'", ".. '\\nn 7 words', 'PX'"),
    ("include/breaker_answer.lua", "text .. ' ' .. entry_text(s))", "text .. ' ' .. entry_text(s) .. ' 7 words')"),
    (
        "include/breaker_state.lua",
        "slice_len = math.max(1, math.floor(w[5] / SLICES)),",
        "slice_len = math.max(1, math.floor(w[5] / (2 * SLICES))),",
    ),
    // The first line of a digest and that of each slice have one more field, and there is an entry of another kind.
    ("digest_flush.lua", "{'2' .. digest.more .. '\\n'}", "{'2 7\\n'}"),
    ("digest_flush.lua", "head .. found.more .. '\\n'", "head .. ' 7 words\\n'"),
    ("digest_flush.lua", ".. digest.others, 'PX'", ".. 'n 7 words\\na\\nb\\nc\\n\\n', 'PX'"),
];

/// The files of the folder: those of buckets, breakers and digests, and those of all scripts.
fn files() -> Vec<PathBuf> {
    let today = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lua/scripts");
    let mut files: Vec<PathBuf> = ["", "include"]
        .iter()
        .flat_map(|folder| fs::read_dir(today.join(folder)).unwrap())
        .map(|entry| entry.unwrap().path().strip_prefix(&today).unwrap().to_owned())
        .filter(|file| {
            let name = file.file_stem().unwrap().to_str().unwrap();
            ["rate_limit", "breaker", "bucket", "digest"].iter().any(|start| name.starts_with(start))
                || ["clock", "cells", "value"].contains(&name)
        })
        .collect();
    files.sort();
    files
}

#[test]
fn the_next_release_is_todays_folder_with_its_changes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (today, next) = (root.join("lua/scripts"), root.join("testkit/next_release"));
    let renew = std::env::var_os("PHALANX_RENEW_DOCS").is_some();
    for (file, from, _) in CHANGES {
        assert!(fs::read_to_string(today.join(file)).unwrap().contains(from), "{file} no longer contains {from:?}");
    }
    for file in files() {
        let mut text = fs::read_to_string(today.join(&file)).unwrap();
        for (_, from, to) in CHANGES.iter().filter(|(changed, ..)| Path::new(changed) == file) {
            text = text.replace(from, to);
        }
        if renew {
            fs::write(next.join(&file), &text).unwrap();
        }
        let found = fs::read_to_string(next.join(&file)).unwrap_or_default();
        assert_eq!(found, text, "testkit/next_release/{} is not renewed: PHALANX_RENEW_DOCS=1", file.display());
    }
}
