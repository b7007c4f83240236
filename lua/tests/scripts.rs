//! Checks every script against its header and against the rules that all scripts follow.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a panic fails the test, in helpers too

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use phalanx_lua::{ALL, COMMANDS, Script};

/// The parts of a header after the first, which is named like the script.
const PARTS: [&str; 4] = ["KEYS", "ARGV", "returns", "keeps"];

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(path)).unwrap()
}

fn names_in(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_suffix(".lua").map(str::to_owned)).collect()
}

/// The parts of a script's header: the name before each colon, and the text after it.
fn header(script: &Script) -> Vec<(String, String)> {
    let text = file(&format!("{}.lua", script.name));
    let mut parts: Vec<(String, String)> = Vec::new();
    for line in text.lines().map_while(|line| line.strip_prefix("--")) {
        match line.strip_prefix(' ').filter(|line| !line.starts_with(' ')).and_then(|line| line.split_once(": ")) {
            Some((part, text)) => parts.push((part.to_owned(), text.to_owned())),
            None => parts.last_mut().expect("a part").1.push_str(line),
        }
    }
    parts
}

fn part(script: &Script, name: &str) -> String {
    header(script).into_iter().find(|(part, _)| part == name).expect("a part").1
}

/// The source without comments.
fn code(source: &str) -> String {
    source
        .lines()
        .map(|line| line.split(" --").next().unwrap_or_default())
        .filter(|l| !l.starts_with("--"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The code of one cell: without the loop over cells, which passes each its own keys and arguments.
fn code_of_cell(script: &Script) -> String {
    let (all, cells) = (code(script.source), code(&file("include/cells.lua")));
    all.replace(cells.trim(), "")
}

/// The texts after each occurrence of `before`, up to `end`.
fn after<'a>(text: &'a str, before: &str, end: char) -> Vec<&'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.split(end).next()).collect()
}

#[test]
fn every_file_has_a_constant_and_every_constant_a_file() {
    let names: BTreeSet<_> = ALL.iter().map(|script| script.name.to_owned()).collect();
    assert_eq!(names, names_in("scripts"));
    assert_eq!(names.len(), ALL.len());
    let constants = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    for name in names {
        assert!(constants.contains(&format!("{} = \"{name}\"", name.to_uppercase())), "{name}");
    }
}

#[test]
fn every_header_has_its_five_parts() {
    for script in ALL {
        let parts: Vec<_> = header(script).into_iter().map(|(part, _)| part).collect();
        assert_eq!(parts[0], script.name);
        assert_eq!(parts[1..], PARTS, "{}", script.name);
        assert!(header(script).iter().all(|(_, text)| text.trim().len() > 2), "{}", script.name);
    }
}

#[test]
fn every_header_lists_the_keys_and_arguments_in_use() {
    for script in ALL {
        let code = code_of_cell(script);
        for list in ["KEYS", "ARGV"] {
            let used = after(&code, &format!("{list}["), ']');
            let (numbers, variables): (Vec<_>, Vec<_>) =
                used.into_iter().partition(|index| index.parse::<usize>().is_ok());
            let numbers: BTreeSet<_> = numbers.into_iter().collect();
            let text = part(script, list);
            let named: BTreeSet<_> = after(&text, "[", ']').into_iter().collect();
            let (open, plain): (BTreeSet<_>, BTreeSet<_>) = named.into_iter().partition(|index| index.ends_with(".."));
            assert_eq!(plain, numbers, "{} {list}", script.name);
            assert_eq!(open.is_empty(), variables.is_empty(), "{} {list}: {variables:?}", script.name);
            let next = (plain.len() + 1).to_string();
            assert!(open.iter().all(|index| index.trim_end_matches("..") == next), "{} {list}", script.name);
            if list == "KEYS" && open.is_empty() {
                assert_eq!(plain.len(), script.keys, "{}", script.name);
            }
        }
    }
}

#[test]
fn every_script_reads_the_time_once_and_only_through_the_clock() {
    assert!(file("include/clock.lua").contains("'TIME'"));
    for script in ALL {
        let code = code(script.source);
        assert_eq!(code.matches("'TIME'").count(), 1, "{}", script.name);
        assert_eq!(code.matches("server_now()").count(), 2, "{}: defined once, called once", script.name);
        assert!(!script.virtual_source.contains("'TIME'"), "{}", script.name);
        let own = code_of_cell(script).replace("string.format", "");
        assert!(!own.contains("#ARGV"), "{}: the last argument is the virtual clock", script.name);
        assert!(!own.contains("os.") && !own.contains("math.random"), "{}", script.name);
    }
}

/// The commands that a script calls, found by text.
fn commands(script: &Script) -> BTreeSet<String> {
    let code = code(script.source);
    let calls = ["redis.call('", "redis.pcall('"].iter().flat_map(|call| after(&code, call, '\''));
    calls.map(str::to_owned).collect()
}

#[test]
fn the_list_of_commands_equals_the_commands_in_use() {
    let used: BTreeSet<_> = ALL.iter().flat_map(commands).collect();
    let listed: BTreeSet<_> = COMMANDS.iter().map(|&command| command.to_owned()).collect();
    assert_eq!(used, listed);
    assert!(COMMANDS.is_sorted());
    for script in ALL {
        // Every other call must have a form that `commands` finds.
        let code = code(script.source);
        let calls = code.matches("redis.call(").count() + code.matches("redis.pcall(").count();
        let named = code.matches("redis.call('").count() + code.matches("redis.pcall('").count();
        assert_eq!(calls, named, "{}", script.name);
    }
    let forbidden = ["KEYS", "SCAN", "FLUSHALL", "FLUSHDB", "CONFIG", "EVAL", "SCRIPT", "DEBUG", "SHUTDOWN", "SORT"];
    assert!(forbidden.iter().all(|command| !COMMANDS.contains(command)));
}

#[test]
fn every_set_has_a_ttl() {
    for script in ALL {
        for set in after(&code(script.source), "redis.call('SET', ", '\n') {
            assert!(set.contains("'PX', "), "{}: {set}", script.name);
        }
    }
}
