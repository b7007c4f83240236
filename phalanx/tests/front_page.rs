//! The README, `CONTRIBUTING.md` and the index of the pages against the project: a newcomer who follows them succeeds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a panic fails the test

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The fenced blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    let block = |rest: &str| rest.split("\n```").next().unwrap_or_default().to_owned() + "\n";
    page.split(begin.as_str()).skip(1).map(block).collect()
}

#[test]
fn the_readme_is_short_and_the_crates_readme_is_the_same() {
    let readme = read("README.md");
    assert_eq!(readme, read("phalanx/README.md"));
    let lines = readme.lines().count();
    assert!(lines <= 180, "{lines} lines");
}

#[test]
fn the_readme_names_the_registry_name_of_the_workspace_key() {
    let manifest = read("Cargo.toml");
    let (_, section) = manifest.split_once("[workspace.metadata.phalanx]\n").expect("the section");
    let key = section.lines().take_while(|line| !line.starts_with('[')).find(|line| line.starts_with("registry-name"));
    let name = key.and_then(|line| line.split('"').nth(1)).expect("registry-name = \"…\"");
    assert_eq!(read("README.md").matches(&format!("`{name}`")).count(), 1, "the README names `{name}` once");
}

#[test]
fn the_readme_states_the_minimum_rust_version() {
    let manifest = read("Cargo.toml");
    let version =
        manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")).unwrap().trim_end_matches('"');
    assert!(read("README.md").contains(&format!("Minimum Rust version {version}")), "{version}");
}

/// The first two Rust blocks and the dependencies of the README, as an empty crate: the first block is the program, the
/// second one of its modules. Only the address is replaced by this checkout.
#[test]
fn the_first_two_blocks_of_the_readme_compile_in_an_empty_crate() {
    let readme = read("README.md");
    let dependencies = blocks(&readme, "toml").into_iter().find(|block| block.starts_with("[dependencies]")).unwrap();
    let (before, rest) = dependencies.split_once("git = \"").expect("phalanx by git");
    let (_, after) = rest.split_once('"').unwrap();
    let checkout = format!("{before}path = {:?}{after}", root().join("phalanx").display().to_string());

    let package = "[package]\nname = \"newcomer\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("newcomer");
    std::fs::create_dir_all(folder.join("src")).unwrap();
    std::fs::write(folder.join("Cargo.toml"), format!("{package}{checkout}")).unwrap();
    // The versions of the workspace, so that nothing has to be resolved or downloaded.
    std::fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let rust = blocks(&readme, "rust");
    let main = format!("#![allow(dead_code)]\n\nmod second;\n\n{}", rust[0]);
    std::fs::write(folder.join("src/main.rs"), main).unwrap();
    std::fs::write(folder.join("src/second.rs"), &rust[1]).unwrap();

    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Cargo sets variables about this package, by which build scripts of the crate would be run again.
    let about_this_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(about_this_package)) {
        cargo.env_remove(name);
    }
    cargo.env_remove("CARGO_TARGET_DIR").env_remove("CARGO_BUILD_TARGET_DIR");
    cargo.args(["check", "--offline", "--quiet", "--target-dir"]).arg(folder.join("target")).current_dir(&folder);
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Every page of `docs/` is in its index, and every relative link of a page leads to a file.
#[test]
fn every_page_is_in_the_index_and_every_link_leads_to_a_file() {
    let docs = root().join("docs");
    let listed = |folder: &Path| -> BTreeSet<String> {
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".md") && name != "README.md").collect()
    };
    for folder in [docs.clone(), docs.join("decisions")] {
        let index = std::fs::read_to_string(folder.join("README.md")).unwrap();
        let missing: Vec<_> =
            listed(&folder).into_iter().filter(|page| !index.contains(&format!("]({page})"))).collect();
        assert!(missing.is_empty(), "not in {}/README.md: {missing:?}", folder.display());
    }
    let mut pages = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    for folder in [docs.clone(), docs.join("decisions")] {
        pages.extend(listed(&folder).into_iter().map(|page| folder.join(page)));
        pages.push(folder.join("README.md"));
    }
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            if link.starts_with("http") || path.contains(' ') {
                continue;
            }
            let target = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            assert!(target.exists(), "{}: {link}", page.display());
            if !anchor.is_empty() && target.extension().is_some_and(|it| it == "md") {
                let headings = std::fs::read_to_string(&target).unwrap();
                let found = headings.lines().filter(|line| line.starts_with('#')).any(|line| anchor_of(line) == anchor);
                assert!(found, "{}: {link}", page.display());
            }
        }
    }
}

/// Rust blocks are compiled, not ignored: `integration-tests/src/pages.rs` includes every page that has one.
#[test]
fn every_page_with_rust_is_a_doc_test() {
    let included = read("integration-tests/src/pages.rs");
    let pages = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    for page in pages.filter(|path| path.extension().is_some_and(|it| it == "md")) {
        let (name, text) = (page.file_name().unwrap().to_str().unwrap(), std::fs::read_to_string(&page).unwrap());
        assert!(!text.contains("```rust,ignore"), "{name}");
        let is_included = included.contains(&format!("include_str!(\"../../docs/{name}\")"));
        assert!(is_included || !text.contains("```rust"), "docs/{name} is not in pages.rs");
    }
}

/// The anchor that GitHub and mdBook give to a heading.
fn anchor_of(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'));
    kept.map(|it| if it == ' ' { '-' } else { it }).collect()
}

/// Title and number as in the file name, then the same five parts in the same order.
#[test]
fn every_decision_has_the_same_form() {
    let pages = std::fs::read_dir(root().join("docs/decisions")).unwrap().map(|entry| entry.unwrap().path());
    let mut checked = 0;
    for page in pages.filter(|path| !path.ends_with("README.md")) {
        let (name, text) = (page.file_name().unwrap().to_str().unwrap(), std::fs::read_to_string(&page).unwrap());
        assert!(text.starts_with(&format!("# {} ", &name[..4])), "{name}: the title");
        let status = text.lines().nth(2).unwrap_or_default();
        assert!(status.starts_with("Status: ") && status.contains(" · Date: 20"), "{name}: {status}");
        let parts: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(parts, ["Context", "Decision", "Alternatives", "Consequences"], "{name}");
        checked += 1;
    }
    assert!(checked >= 14, "{checked}");
}

#[test]
fn every_guarantee_has_its_section_once() {
    let page = read("docs/guarantees.md");
    let numbers = page.lines().filter_map(|line| line.strip_prefix("### I-")?.split(' ').next()?.parse::<u32>().ok());
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=41).collect::<Vec<_>>());
}

#[test]
fn the_glossary_has_at_most_45_entries_in_order_of_one_line_each() {
    let page = read("docs/glossary.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert!(rows.len() <= 45, "{}", rows.len());
    let words: Vec<&str> = rows.iter().map(|row| row.split('|').nth(1).unwrap().trim()).collect();
    assert!(words.windows(2).all(|pair| pair[0] < pair[1]), "{words:?}");
    assert!(rows.iter().all(|row| row.len() <= 160), "one line each");
}

/// The words by which the header of each file names its subject, in any case.
const SUBJECTS: [(&str, &str); 11] = [
    ("lifecycle glue", "lifecycle hooks"),
    ("stand-alone primitives", "stand-alone primitives"),
    ("merge of code and file", "merge of code and file"),
    ("macro support", "macro support"),
    ("file debounce", "debounce of file"),
    ("reply decoding", "reply decoding"),
    ("outbound queue of a breaker", "outbound queue of a breaker"),
    ("the breaker's public types", "breaker's public types"),
    ("effective policy", "effective policy"),
    ("connection health", "connection health"),
    ("periodic sync", "periodic sync"),
];

#[test]
fn every_question_of_a_newcomer_is_answered_by_a_file_whose_header_names_the_subject() {
    let page = read("CONTRIBUTING.md");
    let (_, table) = page.split_once("| question | path |\n|---|---|\n").expect("the table");
    let rows: Vec<(&str, &str)> = table
        .lines()
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches(['|', ' ']).split_once(" | `").expect("two cells"))
        .map(|(question, path)| (question, path.trim_end_matches('`')))
        .collect();
    assert_eq!(rows.len(), SUBJECTS.len());
    for ((question, path), (subject, words)) in rows.into_iter().zip(SUBJECTS) {
        assert_eq!(question, subject);
        assert!(root().join(path).exists(), "{question}: {path} does not exist");
        // A folder's header is that of the module file beside it.
        let file = path.strip_suffix('/').map_or(path.to_owned(), |folder| format!("{folder}.rs"));
        let text = read(&file);
        let header =
            text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim).collect::<Vec<_>>().join(" ");
        let header = header.to_lowercase();
        assert!(header.contains(words), "{file} does not name {words:?}: {header}");
    }
}

/// The five journeys start in files that draw them.
#[test]
fn every_journey_starts_in_a_file_that_draws_it() {
    let page = read("CONTRIBUTING.md");
    let (_, table) = page.split_once("| journey | starts in |\n|---|---|\n").expect("the table");
    let files: Vec<&str> =
        table.lines().take_while(|line| line.starts_with('|')).filter_map(|line| line.split('`').nth(1)).collect();
    assert_eq!(files.len(), 5);
    for file in files {
        let text = read(file);
        let header = text.lines().take_while(|line| line.starts_with("//!")).collect::<Vec<_>>().join("\n");
        assert!(header.contains("```text"), "{file} has no picture in its header");
    }
}
